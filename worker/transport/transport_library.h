// Transports in libraries of their own, so that a training image needs DPDK, say, only if it uses
// it. A library libpbox_KIND.so.1 defines one function:
//
//   extern "C" PBOX_TRANSPORT_EXPORT pbox::worker::Transport* pbox_transport_open_1(
//       const pbox::worker::TransportRequest& request, char* error, size_t error_bytes);
//
// The C++ interface between the two is that of one release: the function must return
// refuse_other_release's answer before it does anything else.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/result.h"
#include "worker/transport/transport.h"

#define PBOX_TRANSPORT_EXPORT __attribute__((visibility("default")))

namespace pbox::worker {

// Never changes: the two sides learn from it whether they fit.
struct TransportRequest {
  const char* version = "";    // of the libpbox that asks
  const char* arguments = "";  // what follows "KIND:" in the port's name
};

// Returns a transport of the caller's to delete, or null with the reason in error, which is cut to
// error_bytes and ends with a zero.
using TransportFactory = Transport*(const TransportRequest& request, char* error,
                                    size_t error_bytes);
inline constexpr char kTransportFactoryName[] = "pbox_transport_open_1";

inline constexpr char kSocketPort[] = "socket";

// For the library's side: true, with the reason in error, if request comes from another release
// than the library was built from.
bool refuse_other_release(const TransportRequest& request, char* error, size_t error_bytes);

// "socket", or "KIND:ARGUMENTS" of a transport library, which is looked for beside libpbox.so and
// then where the loader looks. The library stays loaded for the life of the process. Set-up thread.
Result<std::unique_ptr<Transport>> open_transport(const std::string& port);

}  // namespace pbox::worker
