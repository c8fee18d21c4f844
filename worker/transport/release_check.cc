// A file of its own, so that the libraries need nothing else of libpbox for it.
#include <cstdio>
#include <cstring>

#include "base/version.h"
#include "worker/transport/loaded_library.h"

namespace pbox::worker {

bool refuse_other_release(const LibraryRequest& request, char* error, size_t error_bytes) {
  if (std::strcmp(request.version, kVersion) == 0) return false;
  std::snprintf(error, error_bytes,
                "it is of release %s, but libpbox is of release %s; install both of one release",
                kVersion, request.version);
  return true;
}

}  // namespace pbox::worker
