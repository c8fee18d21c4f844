// A program that does not run: it is stopped, its virtual machine is paused, or others have the
// CPU. It must not take the time that passes meanwhile for the lateness of others.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace pbox {

// A loop whose turns come at least ten times a second did not run if two come further apart than
// this.
inline constexpr uint64_t kStandstillNs = kNanosPerSecond;

}  // namespace pbox
