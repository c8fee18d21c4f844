// A box's trace of a job's rounds, as the page that Perfetto (ui.perfetto.dev) and chrome://tracing
// show: one process per pipeline; in it each tensor's chunks under way, from the first rank's first
// fragment until the result has left, and each rank's arrivals.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

namespace pboxctl {

// Of the rounds of chunks of one priority, in seconds.
struct TracedRounds {
  std::vector<double> aggregate_s;  // from the first fragment until the result was made
  std::vector<double> send_s;       // from then until it had left for all ranks
};

struct TracePage {
  nlohmann::json page;  // an object, with "traceEvents"
  std::map<int64_t, TracedRounds> by_priority;
  uint64_t rounds = 0;      // that are shown
  uint64_t unfinished = 0;  // that had not left when the trace ended, and are not shown
};

// Of GET /api/v1/jobs/NAME/trace; throws nlohmann::json::exception where that is none.
TracePage make_trace_page(const nlohmann::json& trace);

}  // namespace pboxctl
