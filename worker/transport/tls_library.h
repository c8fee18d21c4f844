// TLS of control connections, in a library of its own (loaded_library.h), so that a training image
// has OpenSSL only if its boxes have keys. libpbox_tls.so.1 defines:
//
//   extern "C" PBOX_LIBRARY_EXPORT const pbox::worker::WorkerKeys* pbox_tls_open_1(
//       const pbox::worker::LibraryRequest& request, char* error, size_t error_bytes);
//
// The argument is the folder of keys, or the file of a token.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "nic/seal/session_keys.h"
#include "nic/tls/connection.h"
#include "worker/transport/loaded_library.h"

namespace pbox::worker {

// A worker's keys, which the folder or token holds when a connection is made. They make control
// connections, and the keys of the sessions on these.
class WorkerKeys : public tls::Client {
 public:
  // `connection` must be established, and must outlive the last use of the returned object.
  virtual std::unique_ptr<seal::SessionKeys> session_keys(
      const tls::Connection& connection) const = 0;
};

// Returns the keys, which the caller must delete. If it fails, returns null and stores the reason
// in `error`, zero-terminated and cut to error_bytes.
using TlsFactory = const WorkerKeys*(const LibraryRequest& request, char* error,
                                     size_t error_bytes);
inline constexpr char kTlsFactoryName[] = "pbox_tls_open_1";

// Reads a folder of keys or a token, which `pboxctl keys` has made. The files may be replaced
// later: each new connection uses the current ones. May block.
Result<std::shared_ptr<const WorkerKeys>> open_keys(const std::string& path);

}  // namespace pbox::worker
