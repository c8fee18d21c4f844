// Shared by the files of PartMaps; nothing else includes it.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace pbox::cluster {

inline constexpr char kJobs[] = "jobs/";
inline constexpr char kDrains[] = "drains/";
// Time in seconds during which a box that a job avoids gets no parts of it.
inline constexpr uint64_t kAvoidS = 600;

inline Error unavailable(const std::string& what) {
  return {ErrorCode::kUnavailable, what + "; the request will be repeated"};
}

}  // namespace pbox::cluster
