// The numeric guard of a job: which gradient values are unsound, and what happens to them. Workers
// state it in Join.
#pragma once

#include <cfloat>
#include <cstdint>

namespace pbox::wire {

// The reaction to an unsound value in a rank's push. Values are stable: they appear on the control
// connection and in the C ABI.
enum class Guard : uint8_t {
  kFlag = 0,    // the value is counted for the rank; the result is as without the guard
  kReject = 1,  // mode aggregate: the job fails; mode optimize: the round is skipped
  kZero = 2,    // the value is counted for the rank, and taken as 0
};
inline constexpr uint8_t kGuardCount = 3;
inline constexpr const char* kGuardNames[] = {"flag", "reject", "zero"};

struct GuardSpec {
  Guard policy = Guard::kFlag;
  float max_abs = 0;  // finite and >= 0; 0: every finite value is sound

  // Returns the largest magnitude of a sound value. An infinity or a NaN is never sound.
  float limit() const { return max_abs > 0 ? max_abs : FLT_MAX; }
  bool operator==(const GuardSpec&) const = default;
};

}  // namespace pbox::wire
