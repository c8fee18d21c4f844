// One part of a job on this box: who its ranks are and, once all have joined, its shards on the
// pipelines. A job with a single part is treated the same way. Control thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "appliance/control/job_shards.h"
#include "appliance/control/job_spec.h"
#include "appliance/control/job_trace.h"
#include "appliance/control/job_view.h"
#include "appliance/control/part_state.h"
#include "appliance/control/pipeline_host.h"
#include "appliance/control/roster.h"
#include "appliance/control/session_maker.h"
#include "appliance/control/spi_allocator.h"
#include "appliance/control/start_plan.h"
#include "appliance/control/straggler_view.h"
#include "appliance/control/trace_view.h"
#include "appliance/control/upstream.h"
#include "appliance/snapshot/snapshot.h"

namespace pbox::control {

class Job {
 public:
  // Places the chunks; allocates no memory for their values.
  Job(JobSpec spec, uint64_t created_ns, const Placement& placement, JobTimeouts timeouts = {});
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  const JobSpec& spec() const { return spec_; }
  Roster& members() { return members_; }
  const Roster& members() const { return members_; }
  JobShards& shards() { return shards_; }
  const JobShards& shards() const { return shards_; }
  JobTrace& trace() { return trace_; }
  const JobTimeouts& timeouts() const { return timeouts_; }

  bool running() const { return shards_.running(); }
  // The part gathers after the loss of its box: some of its ranks resume.
  bool recovering() const { return !running() && members_.any_resumes(); }
  // Time at which the part began to gather.
  uint64_t created_ns() const { return created_ns_; }
  // Time at which the first rank resumed; 0 if none has since the part began to gather.
  uint64_t recovering_since_ns() const { return recovering_since_ns_; }
  void on_rank_resumes(uint64_t now_ns);
  // The part is open, and goes on from this barrier.
  void on_started(uint64_t barrier_released) {
    recovering_since_ns_ = 0;
    barrier_released_ = barrier_released;
  }
  // A closed part gathers its ranks once more. The caller resets the members.
  void begin_again(uint64_t now_ns);

  // Bytes that the part takes, also while it still gathers: in all, and for its shard on one
  // pipeline. Tables and names count, not only arenas.
  uint64_t footprint() const;
  uint64_t footprint_on(uint32_t pipeline) const { return shards_.footprints()[pipeline]; }
  // "4 chunks of at most 32256 bytes; pipeline 0: 2 chunks, 40014 bytes a round, 80156 of memory;
  // ..."
  std::string placement() const;

  // Takes the memory of the shards before open() does, and begins to give it its pages. All ranks
  // have joined, and there is a relay if the part has one. No effect the second time. job_open.cc.
  Status reserve_memory(PipelineHost& host);
  // Builds the shards and installs them. Excluded ranks take no part. If ranks resume, rounds go on
  // from what these have consumed and from `state`, which may be null. job_open.cc.
  Status open(PipelineHost& host, SpiAllocator& spis, const SessionMaker& sessions, uint32_t epoch,
              const PartState* state);
  // Takes what another box needs to go on. The pipelines forget the shards; close() follows. Mode
  // optimize. job_state.cc.
  PartState take_state(PipelineHost& host);
  // For a backup copy: takes the state of the part that it is a copy of, as far as it is complete.
  // The pipelines forget the shards; close() follows. job_state.cc.
  PartState take_copy(PipelineHost& host);
  // Takes the shards back from the pipelines and frees them.
  void close(PipelineHost& host, SpiAllocator& spis);

  // The way to the upstream box or, with replicas = 1, to the backup box. `copy` names the copy
  // there. Null before all ranks have joined.
  Relay* relay() { return relay_.get(); }
  const Relay* relay() const { return relay_.get(); }
  void attach_relay(std::unique_ptr<Relay> relay, CopyName copy = {});
  void drop_relay() { relay_.reset(); }
  // The backup copy of this part; its `job` is empty if there is none.
  CopyName copy() const { return relay_ && spec_.replicas > 0 ? copy_ : CopyName{}; }

  // The part is running. Gives the rank new sessions; its former ones are void on every pipeline on
  // return. An excluded rank takes part again, in a new generation.
  Status admit(PipelineHost& host, SpiAllocator& spis, const SessionMaker& sessions, uint32_t rank);
  // From a new generation on rounds no longer wait for the rank.
  void exclude(PipelineHost& host, SpiAllocator& spis, uint32_t rank);
  // Gives the pipelines the learning rate of the roster's learning_rate_setter(), if there is one.
  // Call it when a rank has come or gone. If the upper box has the optimizer, it is told: returns
  // true, and `confirmed` is called once it uses the learning rate.
  bool follow_learning_rate(
      PipelineHost& host, const std::function<void()>& confirmed = [] {});
  uint32_t epoch() const { return epoch_; }
  uint32_t generation() const { return generation_; }
  uint32_t fragment_bytes() const { return fragment_bytes_; }
  // A rank that comes back may use another path. kInvalidArgument if that path is too narrow for
  // the job's fragments.
  Status check_path(const PipelineHost& host, const Member& member, uint32_t rank) const;

  // By chunk, as the part was opened; empty if all chunks began at round 0.
  const std::vector<ChunkStart>& starts() const { return starts_; }
  // True if the part goes on without the optimizer state that was lost with its former box.
  bool has_restarted_optimizer() const;

  // Applies to results finished and operations started from now on. `by_tensor`: one priority per
  // tensor, or empty for the registered ones.
  void set_priorities(PipelineHost& host, wire::PriorityPolicy policy,
                      std::vector<int32_t> by_tensor);
  // The priorities in use, by chunk id.
  std::vector<int32_t> chunk_priorities() const;
  // The priorities set after the job was registered. Each rank must be told.
  const std::optional<proto::SetPriorities>& priorities_set() const { return priorities_set_; }

  // The newest barrier that has been released.
  uint64_t barrier_released() const { return barrier_released_; }
  // Releases the newest barrier that all ranks in the job have asked for, and returns its number.
  // Returns nothing if no newer one than the last has been reached.
  std::optional<uint64_t> release_barrier();

  // The snapshot that the part begins with, once known. Its chunks are empty while the part runs.
  const std::optional<snapshot::Restored>& restored() const { return restored_; }
  void set_restored(snapshot::Restored restored) { restored_ = std::move(restored); }
  // The snapshot whose optimizer state replaces the one that was lost, once known. Its number is 0
  // if there is none, and its chunks are empty while the part runs.
  const std::optional<snapshot::Restored>& optimizer_state() const { return optimizer_state_; }
  void set_optimizer_state(snapshot::Restored state) { optimizer_state_ = std::move(state); }
  // How this part is described in a snapshot. job_snapshot.cc.
  snapshot::PartHead part_head() const;

  // Fills everything in a SESSION that the job knows, for one rank.
  void describe(uint32_t rank, const PipelineHost& host, proto::Session& session) const;
  JobView view(uint64_t now_ns) const;              // job_views.cc
  StragglerView stragglers(uint64_t now_ns) const;  // job_stragglers.cc
  // Adds what trace() has recorded, and stops the recording. job_trace.cc.
  void add_trace(PipelineHost& host, TraceView& view) const;

 private:
  Result<uint32_t> choose_fragment_bytes(const PipelineHost& host, const PartState* state) const;
  Result<uint32_t> widest_fragment_bytes(const PipelineHost& host) const;
  // By index in the pipelines that the part uses.
  std::vector<pipeline::ShardSpec> shard_specs(const PipelineHost& host,
                                               const std::vector<ChunkStart>& starts) const;
  Result<JobShards::Shards> build(std::vector<pipeline::ShardSpec>& specs, const PartState* state);
  void begin_with_snapshot(const JobShards::Shards& shards) const;
  void view_stragglers(JobView& view) const;
  void view_values(JobView& view, uint64_t now_ns) const;

  JobSpec spec_;
  Roster members_;
  JobShards shards_;
  JobTrace trace_;
  JobTimeouts timeouts_;
  uint64_t control_bytes_ = 0;
  uint64_t created_ns_ = 0;
  uint64_t recovering_since_ns_ = 0;
  uint32_t epoch_ = 0;
  uint32_t generation_ = 1;
  uint32_t fragment_bytes_ = 0;
  uint64_t barrier_released_ = 0;
  wire::PriorityPolicy priority_policy_ = wire::PriorityPolicy::kExplicit;
  std::vector<int32_t> priorities_;  // by tensor; empty: as registered
  std::optional<proto::SetPriorities> priorities_set_;
  std::vector<ChunkStart> starts_;
  std::optional<snapshot::Restored> restored_;
  std::optional<snapshot::Restored> optimizer_state_;
  CopyName copy_;
  // Last, because it sends from the memory of the shards.
  std::unique_ptr<Relay> relay_;
};

}  // namespace pbox::control
