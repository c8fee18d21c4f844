// The path probe: a PULL that is longer than its payload. A worker sends some of the largest size
// that the job uses before it pushes anything. The box answers each with a STATUS of the same
// length whose payload is zero, whatever the chunk's state is. A link with a smaller MTU than both
// ends state loses the probe or its answer.
#pragma once

#include "nic/wire/header.h"

namespace pbox::wire {

// Longer than every payload of a PULL and of a STATUS that is no probe's.
inline constexpr uint32_t kPathProbeBytesMin = 64;
static_assert(kPathProbeBytesMin > sizeof(PullPayload));
static_assert(kPathProbeBytesMin > sizeof(StatusPayload));

// Returns whether a PULL or a STATUS belongs to a path probe.
constexpr bool is_path_probe(const Header& header) {
  return header.payload_bytes >= kPathProbeBytesMin;
}

}  // namespace pbox::wire
