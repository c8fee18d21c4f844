// Measures how often workers ask the box while they wait for a rank that says nothing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pbox::sim {

struct Waiting {
  uint32_t workers = 0;
  uint32_t chunks = 0;         // all on one pipeline
  double pulls = 0;            // PULLs per waiting worker and additional second of silence
  double most = 0;             // the allowed maximum of `pulls`
  std::string violation = {};  // empty if there is none
};

// Returns one row for each number of chunks. The first row has the fewest.
std::vector<Waiting> measure_waiting();

}  // namespace pbox::sim
