// Measures the cost of packet loss: the same job over a network that loses packets and over one
// that does not.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pbox::sim {

struct Goodput {
  double loss = 0;             // probability of losing a packet
  uint32_t window_bytes = 0;   // the most that a worker has in flight per pipeline
  double ratio = 0;            // time without loss divided by time with this loss
  double least = 0;            // the required minimum of `ratio`
  double milliseconds = 0;     // simulated time
  std::string violation = {};  // empty if all results were right
};

// Measures with the product's window and with a smaller one.
std::vector<Goodput> measure_goodput();

}  // namespace pbox::sim
