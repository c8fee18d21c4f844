// Compares the results of a job in two flight recorders: of two runs that should be identical, or
// of two boxes on which the job ran one after the other.
#pragma once

#include <string>
#include <vector>

#include "tools/pboxctl/flight_replay.h"

namespace pboxctl {

struct ResultsCompared {
  std::string job;
  uint64_t in_both = 0;    // results of which both records have a digest of the same bytes
  uint64_t different = 0;  // results among them whose digests differ
  ResultKey first;         // the different one of the lowest round; valid if different > 0
};

// Compares each job that is in both records, by name.
std::vector<ResultsCompared> compare_results(const FlightReplay& one, const FlightReplay& other);

}  // namespace pboxctl
