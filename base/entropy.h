// Random numbers that nobody can predict, for what a stranger must not guess. Tests and the
// simulator draw from a seed instead (seeded_draws in rng.h).
#pragma once

#include <cstdint>
#include <functional>

namespace pbox {

// Returns 64 bits, uniform. Called by the thread that owns the source.
using Draws = std::function<uint64_t()>;

// Returns 64 bits from the kernel's generator, in less than a microsecond. Any thread.
uint64_t system_entropy();

}  // namespace pbox
