// Handles unsound values that the pipelines find in the ranks' pushes. Logs the rank, the tensor
// and the round. A job whose guard rejects such values ends in mode aggregate; in mode optimize it
// skips the round (step_verdicts.h). Used on the control thread.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "appliance/control/registry_context.h"

namespace pbox::control {

class GuardWatch {
 public:
  // All arguments must outlive this object.
  GuardWatch(RegistryContext& context, JobOwner& owner) : context_(context), owner_(owner) {}

  // Call it on each tick of a running part: a pipeline may have found unsound values. The job may
  // be gone on return.
  void on_tick(Job& job);
  // Forgets a part that has been closed.
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
