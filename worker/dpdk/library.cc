// The function that libpbox looks up in this library.
#include <cstdio>
#include <memory>

#include "worker/dpdk/transport.h"
#include "worker/transport/transport_library.h"

extern "C" PBOX_LIBRARY_EXPORT pbox::worker::Transport* pbox_transport_open_1(
    const pbox::worker::LibraryRequest& request, char* error, size_t error_bytes) {
  if (pbox::worker::refuse_other_release(request, error, error_bytes)) return nullptr;
  const auto settings = pbox::worker::parse_dpdk_port(request.arguments);
  const pbox::Status started =
      settings ? pbox::worker::start_dpdk(*settings) : pbox::Status(settings.error());
  if (started) return std::make_unique<pbox::worker::DpdkTransport>(*settings).release();
  std::snprintf(error, error_bytes, "%s", started.error().message.c_str());
  return nullptr;
}
