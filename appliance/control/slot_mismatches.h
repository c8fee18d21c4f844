// Ends jobs of collectives whose ranks disagree about an operation, as a pipeline has found
// (pipeline/shaped_pushes.h). First asks two of the ranks for their operations, so that the error
// can name both. Used on the control thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "appliance/control/registry_context.h"

namespace pbox::control {

class SlotMismatches {
 public:
  // All arguments must outlive this object.
  SlotMismatches(RegistryContext& context, JobOwner& owner) : context_(context), owner_(owner) {}

  // Call it on each tick of a running part: a pipeline may have found a mismatch. The job may be
  // gone on return.
  void on_tick(Job& job);
  // Handles a rank's answer. The job may be gone on return.
  void on_answer(const Connection& connection, const proto::SlotOperation& answer);
  // Forgets a part that has been closed.
  void forget(const JobKey& part) { asked_.erase(part); }

 private:
  struct Asked {
    pipeline::ShapeMismatch mismatch;
    uint64_t ends_ns = 0;                  // the job ends then, even without the answers
    size_t answers = 0;                    // number expected: ranks that are gone give none
    std::map<uint32_t, std::string> told;  // by rank
  };

  // Asks the rank for its operation. Returns false if the rank is not there to answer.
  bool ask(const Job& job, uint32_t rank, const pipeline::ShapeMismatch& mismatch);
  void end(Job& job, const Asked& asked);

  RegistryContext& context_;
  JobOwner& owner_;
  std::map<JobKey, Asked> asked_;
};

}  // namespace pbox::control
