#include "appliance/host/core_dumps.h"

#include <sys/prctl.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/check.h"

namespace pbox::host {

Status keep_memory_out_of_dumps() {
  constexpr char kFilter[] = "/proc/self/coredump_filter";
  // The filter is a bit mask of the mappings to dump (core(5)); 0 dumps none. It is written before
  // prctl(), which makes root the owner of the file.
  if (std::ofstream filter(kFilter); !(filter << "0" << std::flush) && errno != ENOENT) {
    return Error{ErrorCode::kUnavailable, std::string("cannot keep keys out of core dumps: ") +
                                              kFilter + ": " + std::strerror(errno) +
                                              "; allow pboxd to write to /proc/self"};
  }
  PBOX_CHECK(prctl(PR_SET_DUMPABLE, 0) == 0);
  return ok_status();
}

}  // namespace pbox::host
