// In a file of its own, so that the libraries can use it without the rest of libpbox.
#include <cstdio>
#include <cstring>

#include "base/version.h"
#include "worker/transport/loaded_library.h"

namespace pbox::worker {

bool refuse_other_release(const LibraryRequest& request, char* error, size_t error_bytes) {
  if (std::strcmp(request.version, kVersion) == 0) return false;
  std::snprintf(
      error, error_bytes,
      "this library is release %s, but libpbox is release %s; install the same release of both",
      kVersion, request.version);
  return true;
}

}  // namespace pbox::worker
