// The function that libpbox looks up in this library.
#include <cstdio>

#include "nic/tls/credentials.h"
#include "worker/transport/tls_library.h"

extern "C" PBOX_LIBRARY_EXPORT const pbox::tls::Client* pbox_tls_open_1(
    const pbox::worker::LibraryRequest& request, char* error, size_t error_bytes) {
  if (pbox::worker::refuse_other_release(request, error, error_bytes)) return nullptr;
  auto credentials = pbox::tls::Credentials::load(request.arguments);
  if (credentials) return credentials->release();
  std::snprintf(error, error_bytes, "%s", credentials.error().message.c_str());
  return nullptr;
}
