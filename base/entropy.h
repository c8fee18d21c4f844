// Random numbers that nobody can predict, for values that a stranger must not guess. Tests and the
// simulator draw from a seed instead (seeded_draws in rng.h).
#pragma once

#include <cstdint>
#include <functional>

namespace pbox {

// A source of uniformly random 64-bit numbers. Only the thread that owns the source calls it.
using Draws = std::function<uint64_t()>;

// Returns 64 bits from the kernel's generator, in less than a microsecond. Any thread.
uint64_t system_entropy();

}  // namespace pbox
