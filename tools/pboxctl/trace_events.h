// Converts a box's trace of a job's rounds to the format of Perfetto (ui.perfetto.dev) and
// chrome://tracing. Each pipeline is a process. It shows each chunk in progress, from the first
// rank's first fragment until the result has left, and the arrivals of each rank.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

namespace pboxctl {

// Durations of the chunk rounds of one priority, in seconds.
struct TracedRounds {
  std::vector<double> aggregate_s;  // from the first fragment until the result was ready
  std::vector<double> send_s;       // from then until the result had left for all ranks
};

struct TracePage {
  nlohmann::json page;  // an object, with "traceEvents"
  std::map<int64_t, TracedRounds> by_priority;
  uint64_t rounds = 0;  // chunk rounds on the page
  uint64_t unfinished =
      0;  // chunk rounds left out, because the trace ended before their results left
};

// Converts the answer to GET /api/v1/jobs/NAME/trace. Throws nlohmann::json::exception if `trace`
// is not such an answer.
TracePage make_trace_page(const nlohmann::json& trace);

}  // namespace pboxctl
