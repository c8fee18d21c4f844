// Libraries libpbox_KIND.so.1, which libpbox loads when they are needed, so that a training image
// has, for example, DPDK or OpenSSL only if it uses it. Each defines one function, which takes a
// LibraryRequest. The C++ interface between libpbox and the library holds within one release only.
// So the function must first call refuse_other_release() and return null if that returns true.
#pragma once

#include <cstddef>
#include <string>

#include "base/result.h"

#define PBOX_LIBRARY_EXPORT __attribute__((visibility("default")))

namespace pbox::worker {

// This struct never changes, because both sides use it to find out whether their releases fit.
struct LibraryRequest {
  const char* version = "";    // version of the libpbox that asks
  const char* arguments = "";  // a port's text after "KIND:", or the folder of keys or token
};

// Bytes for the reason that a library gives when it refuses.
constexpr size_t kFactoryErrorBytes = 1024;

// For the library: returns true and stores the reason in `error` if the request comes from another
// release than the one that the library was built from.
bool refuse_other_release(const LibraryRequest& request, char* error, size_t error_bytes);

// Loads libpbox_KIND.so.1 and returns its function of that name. The library is searched beside
// libpbox.so, then where the loader searches, and stays loaded until the process ends. kNotFound:
// it cannot be loaded; kVersionMismatch: it has no such function. May block.
Result<void*> load_function(const std::string& kind, const char* function);

}  // namespace pbox::worker
