// Verdicts on the rounds of jobs that clip gradients or skip rounds with unsound values.
//
// A round's verdict needs the gradients of all shards and parts. Each part reports the sum of its
// gradients' squares to the deciding part, the lowest part that has chunks. The deciding part tells
// its ranks the verdict, and each rank passes it on to all of its parts. A part steps the round
// once every rank that takes part holds the verdict.
//
// So a rank that has consumed a result of the round holds the verdict and brings it along after the
// loss of a box. Chunks of the round that are summed again are stepped by the same verdict. It does
// not matter which boxes and ranks are lost.
//
// A part that reports to an owner of the deciding part accepts no verdict of an earlier owner from
// then on. So a verdict that only lost ranks and boxes knew cannot appear later beside the verdict
// that replaces it. docs/protocol.md has the whole argument. Used on the control thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "appliance/control/part_directory.h"
#include "appliance/control/registry_context.h"
#include "appliance/control/step_verdict.h"

namespace pbox::control {

class StepVerdicts {
 public:
  // All arguments must outlive this object.
  StepVerdicts(RegistryContext& context, PipelineHost& host, PartDirectory& parts, JobOwner& owner)
      : context_(context), host_(host), parts_(parts), owner_(owner) {}

  // Call it when the part has opened. The newest verdict that a rank brings along counts. Ranks are
  // told before they are sent their sessions. The job may be gone on return, here and below.
  void on_started(Job& job);
  // Call it before a rank of the running part is sent a session.
  void on_rank_back(Job& job, uint32_t rank);
  // Records that a rank holds this verdict.
  void on_held(ConnectionId id, const Connection& connection, const proto::StepVerdict& message);
  // Takes another box's report for its part.
  void on_report(ConnectionId id, const proto::AskStep& question);
  // Call it on each tick: a pipeline may have reported, a rank may no longer be waited for, or a
  // report may have been lost.
  void on_tick(Job& job);
  // Forgets a part that has been closed.
  void forget(const JobKey& part) { progress_.erase(part); }

 private:
  struct Progress {
    std::optional<pipeline::StepReport> report;  // this part's, over all shards
    std::optional<StepVerdict> verdict;          // the newest
    bool is_given = false;                       // the shards have the verdict
    uint32_t promised_epoch = 0;                 // newest known epoch of the deciding part
    bool is_asking = false;                      // the report is on its way to another box
    uint64_t ask_again_ns = 0;
    std::map<uint32_t, pipeline::StepReport> reports;  // deciding part: newest, by part
  };

  void look_for_report(Job& job);
  bool lacks_verdict(const Progress& progress) const;
  void submit(Job& job);
  void ask_other_box(const Job& job);
  void on_answer(const JobKey& part, const Result<proto::BoxMessage>& answer);
  void take_report(Job& deciding, uint32_t part, const pipeline::StepReport& report);
  void learn(Job& job, StepVerdict verdict);
  void adopt(Job& job, const StepVerdict& verdict);
  void tell(const Job& job, uint32_t rank);
  void give_if_held_by_all(Job& job);
  void give(Job& job, float loss_scale);

  RegistryContext& context_;
  PipelineHost& host_;
  PartDirectory& parts_;
  JobOwner& owner_;
  std::map<JobKey, Progress> progress_;  // parts whose rounds need a verdict
};

}  // namespace pbox::control
