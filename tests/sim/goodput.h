// Measures the cost of packet loss: the same job over a network that loses packets and over one
// that does not.
#pragma once

#include <string>
#include <vector>

namespace pbox::sim {

struct Goodput {
  double loss = 0;             // probability of losing a packet
  double ratio = 0;            // time without loss divided by time with this loss
  double least = 0;            // the required minimum of `ratio`
  double milliseconds = 0;     // simulated time
  std::string violation = {};  // empty if all results were right
};

// By ascending loss; the first entry is without loss.
std::vector<Goodput> measure_goodput();

}  // namespace pbox::sim
