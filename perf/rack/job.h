// A job on a rack: one pbox-rack-worker per worker machine, which play a model's trace together.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "perf/rack/rack.h"
#include "perf/rack/spans.h"
#include "perf/rack/trace.h"

namespace pbox::perf {

class RackJob {
 public:
  // options.rank and .worker_count are the rack's. Returns when all ranks have joined; throws
  // std::runtime_error, as play does.
  RackJob(const Rack& rack, PlayerOptions options);

  struct Run {
    std::vector<double> iteration_ms;  // the mean over the ranks
    uint64_t retransmitted = 0;        // fragments, all ranks
    double cpu_seconds = 0;            // CPU time of the ranks
    std::vector<std::vector<Span>> spans_by_rank;
  };
  // As Player::play. A wrong sum throws.
  Run play(uint32_t iterations, double compute_ms, bool with_spans = false);

  // Ends the ranks, which leave the job.
  void finish();

 private:
  std::string name_;
  std::vector<std::unique_ptr<Program>> ranks_;
};

}  // namespace pbox::perf
