// Jobs of collectives whose ranks disagree about an operation, as the pipelines find out
// (pipeline/shaped_pushes.h). Two of the ranks are asked for their operations. Then the job ends,
// with an error that names both. Control thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "appliance/control/registry_context.h"

namespace pbox::control {

class SlotMismatches {
 public:
  // All outlive it.
  SlotMismatches(RegistryContext& context, JobOwner& owner) : context_(context), owner_(owner) {}

  // The part runs; a pipeline may have found a mismatch. The job may be gone on return.
  void on_tick(Job& job);
  // A rank's answer. The job may be gone on return.
  void on_answer(const Connection& connection, const proto::SlotOperation& answer);
  // The part is closed.
  void forget(const JobKey& part) { asked_.erase(part); }

 private:
  struct Asked {
    pipeline::ShapeMismatch mismatch;
    uint64_t ends_ns = 0;                  // no answer is waited for beyond this
    size_t answers = 0;                    // number expected; ranks that are gone give no answer
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
