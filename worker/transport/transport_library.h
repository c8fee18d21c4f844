// Transports in libraries of their own, so that a training image needs, for example, DPDK only if
// it uses it. A library libpbox_KIND.so.1 defines one function:
//
//   extern "C" PBOX_TRANSPORT_EXPORT pbox::worker::Transport* pbox_transport_open_1(
//       const pbox::worker::TransportRequest& request, char* error, size_t error_bytes);
//
// The C++ interface between libpbox and the library holds within one release only. So the function
// must first call refuse_other_release() and return null if that returns true.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/result.h"
#include "worker/transport/transport.h"

#define PBOX_TRANSPORT_EXPORT __attribute__((visibility("default")))

namespace pbox::worker {

// This struct never changes, because both sides use it to find out whether they fit.
struct TransportRequest {
  const char* version = "";    // version of the libpbox that asks
  const char* arguments = "";  // the text after "KIND:" in the port's name
};

// Returns a transport that the caller must delete. Returns null and stores the reason in `error`,
// zero-terminated and cut to error_bytes, if it cannot.
using TransportFactory = Transport*(const TransportRequest& request, char* error,
                                    size_t error_bytes);
inline constexpr char kTransportFactoryName[] = "pbox_transport_open_1";

inline constexpr char kSocketPort[] = "socket";

// For the library: returns true and stores the reason in `error` if the request comes from another
// release than the one that the library was built from.
bool refuse_other_release(const TransportRequest& request, char* error, size_t error_bytes);

// Opens "socket", or "KIND:ARGUMENTS" with a transport library. The library is searched beside
// libpbox.so, then where the loader searches, and stays loaded until the process ends. Set-up
// thread.
Result<std::unique_ptr<Transport>> open_transport(const std::string& port);

}  // namespace pbox::worker
