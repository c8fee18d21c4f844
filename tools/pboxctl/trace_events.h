// Converts a box's trace of a job's rounds to the format of Perfetto (ui.perfetto.dev) and
// chrome://tracing. Each pipeline appears as a process, with each chunk in progress, from the first
// rank's first fragment until the result has left, and the arrivals of each rank. Where ranks have
// rounds of their own, the page shows each rank's push, its wait for slower ranks, and its reply.
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

// Durations of one rank's steps with chunks whose ranks have rounds of their own, in seconds.
struct TracedRank {
  std::vector<double> push_s;   // from its first fragment to its last
  std::vector<double> wait_s;   // its read waited for slower ranks
  std::vector<double> reply_s;  // from the end of its wait until the reply had left
};

struct TracePage {
  nlohmann::json page;                          // an object, with "traceEvents"
  std::map<int64_t, TracedRounds> by_priority;  // rounds that ranks share
  std::map<uint32_t, TracedRank> by_rank;
  uint64_t rounds = 0;  // chunk rounds on the page
  // Chunk rounds left out, because the trace has only a part of them.
  uint64_t unfinished = 0;
};

// Converts the answer to GET /api/v1/jobs/NAME/trace. Throws nlohmann::json::exception if `trace`
// is not such an answer.
TracePage make_trace_page(const nlohmann::json& trace);

}  // namespace pboxctl
