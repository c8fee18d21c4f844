// What loss costs: the same job over a network that loses packets, and over one that does not.
#pragma once

#include <string>
#include <vector>

namespace pbox::sim {

struct Goodput {
  double loss = 0;             // probability
  double ratio = 0;            // to the time without loss
  double least = 0;            // that it must be
  double milliseconds = 0;     // simulated
  std::string violation = {};  // empty: all results were right
};

// By loss ascending, the first without any.
std::vector<Goodput> measure_goodput();

}  // namespace pbox::sim
