// TLS of control connections, in a library of its own (loaded_library.h), so that a training image
// has OpenSSL only if its boxes have keys. libpbox_tls.so.1 defines:
//
//   extern "C" PBOX_LIBRARY_EXPORT const pbox::tls::Client* pbox_tls_open_1(
//       const pbox::worker::LibraryRequest& request, char* error, size_t error_bytes);
//
// The argument is the folder of keys.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "nic/tls/connection.h"
#include "worker/transport/loaded_library.h"

namespace pbox::worker {

// Returns what makes connections with the keys; the caller must delete it. Returns null and stores
// the reason in `error`, zero-terminated and cut to error_bytes, if it cannot.
using TlsFactory = const tls::Client*(const LibraryRequest& request, char* error,
                                      size_t error_bytes);
inline constexpr char kTlsFactoryName[] = "pbox_tls_open_1";

// Reads a folder of keys, as `pboxctl keys` makes it. Set-up thread.
Result<std::shared_ptr<const tls::Client>> open_keys(const std::string& folder);

}  // namespace pbox::worker
