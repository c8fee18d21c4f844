// Unsound values that ranks have pushed, as the pipelines report them: the log names the rank, the
// tensor and the round, and a job in mode aggregate whose guard rejects them ends. In mode optimize
// such a job skips the round (step_verdicts.h). Control thread.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "appliance/control/registry_context.h"

namespace pbox::control {

class GuardWatch {
 public:
  // All outlive it.
  GuardWatch(RegistryContext& context, JobOwner& owner) : context_(context), owner_(owner) {}

  // The part runs; a pipeline may have found unsound values. The job may be gone on return.
  void on_tick(Job& job);
  // The part is closed.
  void forget(const JobKey& part) { logged_.erase(part); }

 private:
  struct Logged {
    uint64_t fragments = 0;
    uint64_t at_ns = 0;
  };

  void log_new(const Job& job);

  RegistryContext& context_;
  JobOwner& owner_;
  std::map<JobKey, std::vector<Logged>> logged_;  // by rank
};

}  // namespace pbox::control
