// The path probe: a PULL that is padded to a larger size. Before a worker pushes anything, it sends
// some probes of the largest packet size that the job uses. The box answers each with a STATUS of
// the same length whose payload is zero, whatever the chunk's state is. A link whose MTU is smaller
// than both ends state drops the probe or its answer.
#pragma once

#include "nic/wire/header.h"

namespace pbox::wire {

// Longer than the payload of any PULL or STATUS that does not belong to a probe.
inline constexpr uint32_t kPathProbeBytesMin = 64;
static_assert(kPathProbeBytesMin > sizeof(PullPayload));
static_assert(kPathProbeBytesMin > sizeof(StatusPayload));

// Returns whether a PULL or a STATUS belongs to a path probe.
constexpr bool is_path_probe(const Header& header) {
  return header.payload_bytes >= kPathProbeBytesMin;
}

}  // namespace pbox::wire
