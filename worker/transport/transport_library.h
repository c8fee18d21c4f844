// Transports in libraries of their own (loaded_library.h). A library libpbox_KIND.so.1 defines:
//
//   extern "C" PBOX_LIBRARY_EXPORT pbox::worker::Transport* pbox_transport_open_1(
//       const pbox::worker::LibraryRequest& request, char* error, size_t error_bytes);
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/result.h"
#include "worker/transport/loaded_library.h"
#include "worker/transport/transport.h"

namespace pbox::worker {

// Returns a transport that the caller must delete. Returns null and stores the reason in `error`,
// zero-terminated and cut to error_bytes, if it cannot.
using TransportFactory = Transport*(const LibraryRequest& request, char* error, size_t error_bytes);
inline constexpr char kTransportFactoryName[] = "pbox_transport_open_1";

inline constexpr char kSocketPort[] = "socket";

// Opens "socket", or "KIND:ARGUMENTS" with a transport library. Set-up thread.
Result<std::unique_ptr<Transport>> open_transport(const std::string& port);

}  // namespace pbox::worker
