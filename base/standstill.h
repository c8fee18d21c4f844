// The bound by which a loop detects that its program has not run for a while: it was stopped, its
// virtual machine was paused, or other programs had the CPU. The program must not take that time
// for the lateness of others.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace pbox {

// A loop whose turns come at least ten times a second did not run if two turns are further apart
// than this.
inline constexpr uint64_t kStandstillNs = kNanosPerSecond;

}  // namespace pbox
