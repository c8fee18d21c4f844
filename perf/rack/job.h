// A job on a rack. Each worker machine runs one pbox-rack-worker, and together they play a model's
// trace.
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
  // Starts one rank on each worker machine and returns when all have joined. Ignores options.rank
  // and options.worker_count, which follow from the rack. Throws std::runtime_error, like play().
  RackJob(const Rack& rack, PlayerOptions options);
  // Starts the ranks on `machines` machines only, from `first_machine` on.
  RackJob(const Rack& rack, PlayerOptions options, uint32_t first_machine, uint32_t machines);

  struct Run {
    std::vector<double> iteration_ms;  // mean over the ranks
    uint64_t retransmitted = 0;        // fragments, all ranks
    double cpu_seconds = 0;            // CPU time of the ranks
    std::vector<std::vector<Span>> spans_by_rank;
  };
  // Runs Player::play on every rank. Throws if a sum is wrong.
  Run play(uint32_t iterations, double compute_ms, bool with_spans = false) {
    begin(iterations, compute_ms, with_spans);
    return end();
  }
  // The two halves of play(), for jobs that run beside each other.
  void begin(uint32_t iterations, double compute_ms, bool with_spans = false);
  Run end();

  // Ends the rank processes. The ranks leave the job.
  void finish();

 private:
  std::string name_;
  uint32_t iterations_ = 0;  // in the run that was begun
  std::vector<std::unique_ptr<Program>> ranks_;
};

double total_ms(const std::vector<double>& iteration_ms);
double mean_ms(const std::vector<double>& iteration_ms);

// Returns how many of a run's iterations are over after `ms`. The one that is then under way counts
// in part.
double iterations_within(const std::vector<double>& iteration_ms, double ms);

}  // namespace pbox::perf
