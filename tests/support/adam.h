// A job in mode optimize for as long as a test wants: Adam on the boxes, two ranks in processes of
// their own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/worker_process.h"

namespace pbox::test {

class AdamTraining {
 public:
  struct Options {
    std::string box;
    // After each step, whose weights are those of training undisturbed; but for what the box says
    // that was lost with another, while nobody took a step.
    bool checks = true;
    std::string restore = {};  // as pbox_options
    uint32_t replicas = 0;     // so is this
    uint32_t times = 0;        // that they take steps, and then leave; 0: for ever
  };
  // Joins, and gives the box its first weights.
  explicit AdamTraining(const Options& options);

  // Each time, both take some steps.
  void begin_steps() const;
  struct Report {
    uint64_t recoveries = 0, restarts = 0;
    uint64_t moments = 0;  // the snapshot that they are of; 0: they were not lost, or begin anew
  };
  Report end_steps();  // as both ranks have it
  void kill() const;

  // Where it has begun: the snapshot, 0 for none, and the steps that its weights had taken.
  uint64_t restored_snapshot() const { return restored_snapshot_; }
  uint64_t restored_steps() const { return restored_steps_; }

 private:
  std::vector<WorkerProcess> ranks_;
  uint64_t restored_snapshot_ = 0, restored_steps_ = 0;
};

}  // namespace pbox::test
