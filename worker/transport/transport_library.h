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

// Returns a transport that the caller must delete. Returns null and stores the reason in `error`,
// zero-terminated and cut to error_bytes, if it cannot.
using TransportFactory = Transport*(const LibraryRequest& request, char* error, size_t error_bytes);
inline constexpr char kTransportFactoryName[] = "pbox_transport_open_1";

inline constexpr char kSocketPort[] = "socket";
inline constexpr char kShmPort[] = "shm";
// The same as "shm", but nobody needs to hear of it if the box is not on this host or offers none.
inline constexpr char kAutoPort[] = "auto";

// Returns the entries of a list; one that is empty if the list is. Pure.
std::vector<std::string> split_list(const std::string& list, char separator);

// Returns the entries of a list of ports, separated by |, in the order in which they are tried.
// "auto" has an entry behind it, "socket" if the list has none.
std::vector<std::string> ports_of(const std::string& list);

// Opens "socket", "shm", "auto", or "KIND:ARGUMENTS" with a transport library. Set-up thread.
Result<std::unique_ptr<Transport>> open_transport(const std::string& port);

}  // namespace pbox::worker
