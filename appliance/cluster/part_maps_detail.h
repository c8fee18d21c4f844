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

// A worker repeats a request that is answered with kUnavailable, and its job ends with any other
// error. A store that is late or has no space will answer again.
inline Error from_store(const Error& error) {
  const bool passes = error.code == ErrorCode::kTimeout || error.code == ErrorCode::kUnavailable ||
                      error.code == ErrorCode::kResourceExhausted;
  return passes ? unavailable("the cluster store did not answer: " + error.message) : error;
}

}  // namespace pbox::cluster
