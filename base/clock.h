// Time as a value. Protocol code never reads a clock: its caller passes now_ns in, so the same code
// runs under a simulated clock.
#pragma once

#include <cstdint>
#include <ctime>
#include <string>

namespace pbox {

inline constexpr uint64_t kNanosPerMilli = 1'000'000;
inline constexpr uint64_t kNanosPerSecond = 1'000'000'000;

// Returns CLOCK_MONOTONIC in nanoseconds. Any thread.
inline uint64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * kNanosPerSecond + static_cast<uint64_t>(now.tv_nsec);
}

// Converts a time or duration to the type that system calls take.
constexpr timespec timespec_of(uint64_t nanoseconds) {
  return {.tv_sec = static_cast<time_t>(nanoseconds / kNanosPerSecond),
          .tv_nsec = static_cast<long>(nanoseconds % kNanosPerSecond)};
}

// Formats a duration for a message, rounded down to tenths: "2.5 s".
inline std::string in_seconds(uint64_t nanoseconds) {
  const uint64_t tenths = nanoseconds / (kNanosPerSecond / 10);
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

}  // namespace pbox
