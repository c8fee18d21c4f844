// A job in mode optimize that trains for as long as a test wants: Adam on the boxes, and two ranks
// in processes of their own.
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
    // If true, ranks compare the weights after each step with those of undisturbed training. Losses
    // of optimizer state that the box reports between steps are taken into account.
    bool checks = true;
    std::string restore = {};  // see pbox_options
    uint32_t replicas = 0;     // see pbox_options
    std::string job = "adam";
    std::string keys = {};  // see pbox_options
    // If true, some rounds are not finite, the boxes skip these, and each rank checks the verdict
    // on every round.
    bool skips = false;
    // Number of calls of begin_steps() after which the ranks leave; 0 for no limit.
    uint32_t times = 0;
  };
  // Joins, and initializes the weights on the box.
  explicit AdamTraining(const Options& options);

  // Makes both ranks take some steps.
  void begin_steps();
  // Waits until both ranks have done this many steps since begin_steps(). The following steps are
  // then under way.
  void await_steps(uint64_t count) const { progress_.await(begun_at_ + count); }
  // Returns whether steps of begin_steps() are still to be done.
  bool is_under_way() const;
  struct Report {
    uint64_t recoveries = 0, restarts = 0;
    // The snapshot from which lost optimizer state was restored; 0 if none was lost, or if the
    // optimizer restarted without a snapshot.
    uint64_t restored_from = 0;
  };
  Report end_steps();  // waits for the steps; both ranks' reports must agree
  void kill() const;

  // These return where training began: the snapshot (0 for none), and the steps that its weights
  // contain.
  uint64_t restored_snapshot() const { return restored_snapshot_; }
  uint64_t restored_steps() const { return restored_steps_; }

 private:
  Progress progress_{2};
  std::vector<WorkerProcess> ranks_;
  uint64_t begun_at_ = 0;
  uint64_t restored_snapshot_ = 0, restored_steps_ = 0;
};

}  // namespace pbox::test
