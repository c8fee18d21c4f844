// One part of a job on this box: its ranks and, once all have joined, its shards on the pipelines.
// A job that is not divided is one part. Used on the control thread.
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
  // Returns whether the part gathers after the loss of its box, so that some of its ranks resume.
  bool recovering() const { return !running() && members_.any_resumes(); }
  struct GatherTimes {
    uint64_t begun_ns = 0;    // when the part began to gather
    uint64_t resumed_ns = 0;  // when the first rank resumed since then; 0 if none has
  };
  const GatherTimes& gather_times() const { return gather_times_; }
  void on_rank_resumes(uint64_t now_ns);
  // Does not count the last `gap_ns` against ranks that are awaited, because the box stood still.
  void forgive(uint64_t gap_ns, uint64_t now_ns);
  // Records that the part is open and goes on from this barrier.
  void on_started(uint64_t barrier_released) {
    gather_times_.resumed_ns = 0;
    barrier_released_ = barrier_released;
  }
  // Has a closed part gather its ranks once more. The caller resets the members.
  void begin_again(uint64_t now_ns);

  // Bytes that the part takes, also while it still gathers: in all, and for its shard on one
  // pipeline. Tables and names count, not only arenas.
  uint64_t footprint() const;
  uint64_t footprint_on(uint32_t pipeline) const { return shards_.footprints()[pipeline]; }
  // Returns, for the log, "4 chunks of at most 32256 bytes; pipeline 0: 2 chunks, 40014 bytes a
  // round, 80156 of memory; ..."
  std::string placement() const;

  // Allocates the memory of the shards ahead of open(), and begins to prefault it. Call it when all
  // ranks have joined and the relay, if the part has one, is attached. Has no effect the second
  // time. Defined in job_open.cc.
  Status reserve_memory(PipelineHost& host);
  // Builds the shards and installs them. Excluded ranks take no part. If some ranks resume, rounds
  // go on from what these ranks have consumed and from `state`, which may be null. Defined in
  // job_open.cc.
  Status open(PipelineHost& host, SpiAllocator& spis, const SessionMaker& sessions, uint32_t epoch,
              const PartState* state);
  // Returns the state that another box needs to go on. The pipelines forget the shards; close()
  // must follow. Only in mode optimize. Defined in job_state.cc.
  PartState take_state(PipelineHost& host);
  // For a backup copy: returns the state of the part that it is a copy of, as far as that state is
  // complete. The pipelines forget the shards; close() must follow. Defined in job_state.cc.
  PartState take_copy(PipelineHost& host);
  // Takes the shards back from the pipelines and frees them.
  void close(PipelineHost& host, SpiAllocator& spis);

  // The relay to the upstream box or, with replicas = 1, to the backup box; null before all ranks
  // have joined. `copy` names the backup copy.
  Relay* relay() { return relay_.get(); }
  const Relay* relay() const { return relay_.get(); }
  void attach_relay(std::unique_ptr<Relay> relay, CopyName copy = {});
  void drop_relay() { relay_.reset(); }
  // The backup copy of this part; its `job` is empty if there is none.
  CopyName copy() const { return relay_ && spec_.replicas > 0 ? copy_ : CopyName{}; }

  // Gives a rank of a running part new sessions. On return its former sessions are void on every
  // pipeline. An excluded rank takes part again, in a new generation.
  Status admit(PipelineHost& host, SpiAllocator& spis, const SessionMaker& sessions, uint32_t rank);
  // Begins a new generation, in which rounds do not wait for the rank.
  void exclude(PipelineHost& host, SpiAllocator& spis, uint32_t rank);
  // Gives the pipelines the learning rate of the roster's learning_rate_setter(), if there is one.
  // Call it when a rank has joined, left or been lost. If the upper box has the optimizer, the
  // learning rate goes there: returns true, and `confirmed` is called once the upper box uses it.
  bool follow_learning_rate(
      PipelineHost& host, const std::function<void()>& confirmed = [] {});
  uint32_t epoch() const { return epoch_; }
  uint32_t generation() const { return generation_; }
  uint32_t fragment_bytes() const { return fragment_bytes_; }
  // Checks the path of a rank that comes back, which may differ from its former one.
  // kInvalidArgument if it is too narrow for the job's fragments.
  Status check_path(const PipelineHost& host, const Member& member, uint32_t rank) const;

  // The start of each chunk when the part was opened; empty if all chunks began at round 0.
  const std::vector<ChunkStart>& starts() const { return starts_; }
  // Returns whether the part goes on without the optimizer state that was lost with its former box.
  bool has_restarted_optimizer() const;

  // Sets the priorities of results that finish and operations that start from now on. `by_tensor`:
  // one priority per tensor, or empty for the registered ones.
  void set_priorities(PipelineHost& host, wire::PriorityPolicy policy,
                      std::vector<int32_t> by_tensor);
  // The priorities in use, by chunk id.
  std::vector<int32_t> chunk_priorities() const;
  // The priorities set after the job was registered. Each rank must be told.
  const std::optional<proto::SetPriorities>& priorities_set() const { return priorities_set_; }

  // The newest barrier that has been released.
  uint64_t barrier_released() const { return barrier_released_; }
  // Releases the newest barrier that all ranks in the job have asked for, and returns its number.
  // Returns nothing if no barrier after the last one released has been reached.
  std::optional<uint64_t> release_barrier();

  // The snapshot that the part begins with, once known. Its chunks are empty while the part runs.
  const std::optional<snapshot::Restored>& restored() const { return restored_; }
  void set_restored(snapshot::Restored restored) { restored_ = std::move(restored); }
  // The snapshot whose optimizer state replaces the one that was lost, once known. Its number is 0
  // if there is none, and its chunks are empty while the part runs.
  const std::optional<snapshot::Restored>& optimizer_state() const { return optimizer_state_; }
  void set_optimizer_state(snapshot::Restored state) { optimizer_state_ = std::move(state); }
  // Returns the description of this part for a snapshot. Defined in job_snapshot.cc.
  snapshot::PartHead part_head() const;

  // Fills the fields of a rank's SESSION that the job knows.
  void describe(uint32_t rank, const PipelineHost& host, proto::Session& session) const;
  JobView view(uint64_t now_ns) const;              // job_views.cc
  StragglerView stragglers(uint64_t now_ns) const;  // job_stragglers.cc
  // Adds what trace() has recorded to `view`, and stops the recording. Defined in job_trace.cc.
  void add_trace(PipelineHost& host, TraceView& view) const;

 private:
  Result<uint32_t> choose_fragment_bytes(const PipelineHost& host, const PartState* state) const;
  Result<uint32_t> widest_fragment_bytes(const PipelineHost& host) const;
  // Returns the specs of the shards, by index in JobShards::pipelines().
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
  GatherTimes gather_times_;
  uint32_t epoch_ = 0;
  uint32_t generation_ = 1;
  uint32_t fragment_bytes_ = 0;
  uint64_t barrier_released_ = 0;
  wire::PriorityPolicy priority_policy_ = wire::PriorityPolicy::kExplicit;
  std::vector<int32_t> priorities_;  // by tensor; empty if they are as registered
  std::optional<proto::SetPriorities> priorities_set_;
  std::vector<ChunkStart> starts_;
  std::optional<snapshot::Restored> restored_;
  std::optional<snapshot::Restored> optimizer_state_;
  CopyName copy_;
  // Declared last, and so destroyed first, because it sends from the memory of the shards.
  std::unique_ptr<Relay> relay_;
};

}  // namespace pbox::control
