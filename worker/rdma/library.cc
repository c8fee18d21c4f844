// The function that libpbox looks up in this library.
#include <cstdio>
#include <memory>

#include "worker/rdma/transport.h"
#include "worker/transport/transport_library.h"

extern "C" PBOX_LIBRARY_EXPORT pbox::worker::Transport* pbox_transport_open_1(
    const pbox::worker::LibraryRequest& request, char* error, size_t error_bytes) {
  if (pbox::worker::refuse_other_release(request, error, error_bytes)) return nullptr;
  const auto settings = pbox::worker::parse_rdma_port(request.arguments);
  if (settings) return std::make_unique<pbox::worker::RdmaTransport>(*settings).release();
  std::snprintf(error, error_bytes, "%s", settings.error().message.c_str());
  return nullptr;
}
