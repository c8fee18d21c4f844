// The bound by which a loop detects that its program has not run for a while: it was stopped, its
// virtual machine was paused, or other programs had the CPU. The program must not conclude from
// that time that its peers are late.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace pbox {

// If a loop turns at least ten times a second, and two of its turns are further apart than this,
// the program did not run in between.
inline constexpr uint64_t kStandstillNs = kNanosPerSecond;

}  // namespace pbox
