// The results of one job as two flight recorders have them: of two runs that ought to be the same,
// or of the boxes that a job was on one after the other.
#pragma once

#include <string>
#include <vector>

#include "tools/pboxctl/flight_replay.h"

namespace pboxctl {

struct ResultsCompared {
  std::string job;
  uint64_t in_both = 0;  // results whose digests are of the same bytes
  uint64_t different = 0;
  ResultKey first;  // of the lowest round that is different; different > 0
};

// For each job that both have, by name.
std::vector<ResultsCompared> compare_results(const FlightReplay& one, const FlightReplay& other);

}  // namespace pboxctl
