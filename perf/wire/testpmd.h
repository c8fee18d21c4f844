// Runs dpdk-testpmd, which measures the cycles that a core needs to receive and send a frame
// (macswap).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pbox::perf {

struct ForwardOptions {
  std::vector<std::string> devices;  // --vdev arguments: one device that loops, or a pair
  uint32_t frame_bytes = 0;
  uint32_t buffer_bytes = 0;  // size of a packet buffer, headroom included
  double seconds = 1;
  bool hugepages = false;  // false: ordinary pages
};

// Returns the cycles of the time stamp counter per forwarded frame, without those of idle polls.
// Starts dpdk-testpmd and waits for it. Throws std::runtime_error with its output if it forwards no
// packets.
double forwarding_cycles(ForwardOptions options);

}  // namespace pbox::perf
