// Transports in libraries of their own (loaded_library.h). A library libpbox_KIND.so.1 defines:
//
//   extern "C" PBOX_LIBRARY_EXPORT pbox::worker::Transport* pbox_transport_open_1(
//       const pbox::worker::LibraryRequest& request, char* error, size_t error_bytes);
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "worker/transport/loaded_library.h"
#include "worker/transport/transport.h"

namespace pbox::worker {

// Returns a transport that the caller must delete. If it fails, returns null and stores the reason
// in `error`, zero-terminated and cut to error_bytes.
using TransportFactory = Transport*(const LibraryRequest& request, char* error, size_t error_bytes);
inline constexpr char kTransportFactoryName[] = "pbox_transport_open_1";

inline constexpr char kSocketPort[] = "socket";
inline constexpr char kShmPort[] = "shm";
// Like "shm", but nothing is reported if the box is not on this host or offers no shared memory.
inline constexpr char kAutoPort[] = "auto";

// Returns the entries of a list. An empty list has one entry, which is empty. Pure.
std::vector<std::string> split_list(const std::string& list, char separator);

// Returns the entries of a list of ports, separated by |, in the order in which they are tried. If
// the last one is "auto", adds "socket" behind it.
std::vector<std::string> ports_of(const std::string& list);

// Makes the transport of "socket", "shm", "auto", or "KIND:ARGUMENTS", which needs a transport
// library. May block to load that.
Result<std::unique_ptr<Transport>> open_transport(const std::string& port);

}  // namespace pbox::worker
