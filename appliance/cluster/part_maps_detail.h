// Shared by the files of PartMaps; nothing else includes it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace pbox::cluster {

inline constexpr char kJobs[] = "jobs/";
inline constexpr char kDrains[] = "drains/";
// Time in seconds during which a box that a job avoids gets no parts of it.
inline constexpr uint64_t kAvoidS = 600;

// The value of a box's key under drains/: whether it is a standby, and what keeps it from being
// empty. Releases without standbys show the first line to operators as a part of the obstacle.
struct DrainEntry {
  bool is_standby = false;
  std::string obstacle = {};
};
inline constexpr std::string_view kStandbyLine = "standby\n";
inline std::string to_text(const DrainEntry& entry) {
  return std::string(entry.is_standby ? kStandbyLine : "") + entry.obstacle;
}
inline DrainEntry drain_entry_of(std::string_view text) {
  const bool is_standby = text.starts_with(kStandbyLine);
  if (is_standby) text.remove_prefix(kStandbyLine.size());
  return {is_standby, std::string(text)};
}

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
