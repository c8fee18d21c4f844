// dpdk-testpmd as a measure: what receiving and sending a frame costs a core that does nothing else
// with it (macswap).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pbox::perf {

struct ForwardOptions {
  std::vector<std::string> devices;  // --vdev; one loops, two are a pair
  uint32_t frame_bytes = 0;
  uint32_t buffer_bytes = 0;  // size of a packet buffer, headroom included
  double seconds = 1;
  bool hugepages = false;  // else ordinary pages
};

// Cycles of the time stamp counter per forwarded frame, idle polls left out. Starts dpdk-testpmd,
// waits for it, and throws std::runtime_error with its words if it does not work.
double forwarding_cycles(ForwardOptions options);

}  // namespace pbox::perf
