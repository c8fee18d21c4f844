// One job on this box: its members, and, once all have joined, its shards on the pipelines. Control
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "appliance/control/job_spec.h"
#include "appliance/control/job_view.h"
#include "appliance/control/part_state.h"
#include "appliance/control/pipeline_host.h"
#include "appliance/control/recovery_plan.h"
#include "appliance/control/spi_allocator.h"
#include "appliance/control/straggler_view.h"
#include "appliance/control/trace_view.h"
#include "appliance/control/upstream.h"
#include "appliance/snapshot/snapshot.h"
#include "pipeline/state/state_cut.h"

namespace pbox::appliance {

using ConnectionId = uint64_t;  // 0: none

// Where the copy of a part is, and what the job is called that it is there.
struct CopyName {
  std::string box;
  std::string job;  // empty: there is no copy
};

// What a rank has finished of a job's part, as it says: see FinishedRounds of
// nic/wire/control.proto.
struct RankProgress {
  uint64_t rounds = 0;  // 0: nothing yet
  uint64_t at_ns = 0;
  uint64_t busy_ns = 0;
  bool operator==(const RankProgress&) const = default;
};

// A part that runs on this box and could go on at another.
struct PartProgress {
  std::string job;
  uint32_t part = 0;
  uint32_t part_count = 1;
  uint64_t bytes = 0;               // a round's, of one rank
  std::vector<RankProgress> ranks;  // of those that take part
};

struct Member {
  // kExcluded: lost for too long in a job that goes on without (policy partial).
  enum class State { kAbsent, kJoined, kLost, kLeft, kExcluded };
  State state = State::kAbsent;
  ConnectionId connection = 0;
  std::string peer;
  uint32_t path_mtu = 0;
  bool ipv6 = false;
  uint64_t lost_ns = 0;
  std::string lost_reason;
  uint64_t barrier_sequence = 0;
  uint64_t barriers_released = 0;            // resumes: the highest it has passed
  std::vector<uint64_t> reads_by_staleness;  // as in its last HEARTBEAT
  RankProgress progress;                     // so is this

  uint64_t incarnation = 0;  // the same process, or another one in its place?
  bool resumes = false;      // it was in the job before the box was lost
  bool rejoins = false;      // a new process in a lost one's place
  uint32_t epoch = 0;        // resumes: of its last session
  uint32_t generation = 0;
  std::vector<uint32_t> consumed;  // resumes: the next round it needs, by chunk; the job's whole
                                   // count before it counts as joined
  std::vector<bool> lacks;         // resumes: by chunk, as ConsumedRounds
  std::string box;                 // resumes: of its last session
  CopyName copy;                   // resumes: so is this
  uint64_t restored_snapshot = 0;  // resumes: that the job began with, as it was told; 0: none
  uint64_t restored_steps = 0;
  bool stated = false;              // consumed is complete
  std::vector<uint32_t> absent;     // resumes: whom its generation went on without
  uint64_t learning_rates_set = 0;  // resumes: how often, and the last
  float learning_rate = 0;
  // When it was last told who takes part: generations are counted anew in each epoch.
  std::pair<uint32_t, uint32_t> told() const { return {epoch, generation}; }
};

// What the box that had a part before hands over, while it comes, and until it is used.
struct StateTransfer {
  std::string box;          // that is asked
  std::string session_box;  // that the ranks had their newest session with
  std::string job;          // there
  uint32_t part = 0;
  bool is_backup = false;  // it has a copy
  CopyName next;           // who is asked if this one does not answer
  IncomingState state;
  uint64_t answer_due_ns = 0;
  uint64_t number = 0;   // of the question that is not answered yet; 0: there is none
  bool is_over = false;  // all of it is here, or it is given up
};

// A state that has been opened here, and is to be kept there until it is out of date.
struct StateSource {
  std::string box;
  std::string job;  // there
  uint32_t part = 0;
  uint32_t epoch = 0;
  bool is_backup = false;
};

// The search for a box that has a copy of a part in mode optimize, and what came of it.
struct Backup {
  size_t tried = 0;      // boxes, of those that could
  std::string box = {};  // that is asked, or has it
  std::string job = {};  // what the copy is called there
  bool is_joined = false;
  uint32_t seeded_epoch = 0;  // of the state that it is given, or has been; 0: none
  bool is_seeding = false;
  bool is_given_up = false;      // the part begins without
  uint64_t absent_since_ns = 0;  // it has the copy, but is not among those that could; 0: it is
  // A part that runs without: the next attempt.
  std::unique_ptr<Relay> probe = {};
  uint64_t probe_number = 0;
  uint64_t look_due_ns = 0;
  uint64_t look_interval_ns = 0;
};

class Job {
 public:
  // Places the chunks: nothing is allocated. `loads_bytes`: per pipeline, what other jobs move
  // there in a round.
  Job(JobSpec spec, uint64_t created_ns, const std::vector<uint64_t>& loads_bytes);

  const JobSpec& spec() const { return spec_; }
  std::vector<Member>& members() { return members_; }
  const std::vector<Member>& members() const { return members_; }
  bool running() const { return !shards_.empty(); }
  uint64_t created_ns() const { return created_ns_; }
  // A closed job gathers from now on.
  void begin_again(uint64_t now_ns) {
    created_ns_ = now_ns;
    recovering_since_ns = barrier_released = 0;
    epoch_awaited.reset();
    transfer.reset();
    opened_from.reset();
    restored.reset();
    moments.reset();
    restoring = 0;
    relay.reset();
    backup = {};
    starts_.clear();
  }

  // What the shards take, also while the job is still gathering: on all pipelines, and on one.
  uint64_t footprint() const;
  uint64_t footprint_on(uint32_t pipeline) const { return footprints_[pipeline]; }
  // Of the box, by their index in the session: all, or, where the job is in parts, one.
  const std::vector<uint32_t>& pipelines() const { return pipelines_; }
  uint32_t chunk_count() const { return static_cast<uint32_t>(chunk_pipeline_.size()); }
  // Joined, and, if it resumes, all that it must say is said.
  static bool ready(const Member& member) {
    return member.state == Member::State::kJoined && (!member.resumes || member.stated);
  }
  // Everybody is here but those whom the job had gone on without.
  bool all_joined() const;
  // The job went on without the rank, says a worker that was told later than `told`.
  bool left_behind(uint32_t rank, std::pair<uint32_t, uint32_t> told) const;
  // Resuming ranks with which the job cannot go on, whatever the others have. `state`: what the box
  // before hands over, or null.
  Result<std::vector<uint32_t>> beyond_recovery(const PartState* state) const;
  // Of the ranks that resume, the one with the newest session; null: there is none.
  const Member* newest_resuming() const;
  // It is a state of this job, and the ranks are where it was left.
  bool continues(const PartState& state) const;
  // It gathers after its box was lost.
  bool recovering() const;
  uint32_t count(Member::State state) const;
  // Those that are here are more than half of whom the job had last, or half with the lowest rank:
  // two groups of its ranks that do not know of each other never both are (dynamic linear voting,
  // Jajodia, Mutchler 1990).
  bool has_majority() const;
  // "rank 3" or "ranks 0, 2, 5": those in a state.
  std::string ranks(Member::State state) const;

  // Builds the shards and installs them. Ranks that are kExcluded take no part. Where ranks resume,
  // rounds go on from what they have consumed, and from `state`, which may be null.
  Status open(PipelineHost& host, SpiAllocator& spis, uint32_t epoch, const PartState* state);
  // What another box needs to go on. The pipelines forget the shards; close() follows. Mode
  // optimize.
  PartState take_state(PipelineHost& host);
  // job_registry_backup.cc. Of a copy: the part that it is of, as far as it is whole. The pipelines
  // forget the shards; close() follows.
  PartState take_copy(PipelineHost& host);
  // By chunk, how many f32 its state has.
  std::vector<size_t> state_value_counts() const;
  // Chunks' rounds, since it was opened.
  uint64_t rounds_finished() const;
  // Takes the shards back from the pipelines and frees them.
  void close(PipelineHost& host, SpiAllocator& spis);
  void set_learning_rate(PipelineHost& host, float learning_rate);
  // For results finished and operations started from now on. by_tensor: one per tensor, or empty:
  // as registered.
  void set_priorities(PipelineHost& host, wire::PriorityPolicy policy,
                      std::vector<int32_t> by_tensor);
  // They were set since the ranks stated the policy: each must be told.
  const std::optional<proto::SetPriorities>& priorities_set() const { return priorities_set_; }
  void set_credit(PipelineHost& host, uint32_t pipeline, uint32_t credit_bytes);
  // Of a job that is relayed: what its relay joins with, and, once it runs, its way there.
  RelaySpec relay_spec() const;
  std::vector<RelayLane> relay_lanes(PipelineHost& host) const;
  // Of one that wants a copy: what its relay to the backup box joins with, and what the chunks are
  // there that begin from a state.
  RelaySpec backup_spec(const std::string& name) const;
  std::vector<std::vector<float>> backup_blocks(const PartState& state) const;
  CopyName copy() const {
    return relay && spec_.replicas > 0 ? CopyName{backup.box, backup.job} : CopyName{};
  }

  // A running job. New sessions for a rank; those it had are void on every pipeline when this
  // returns. An excluded rank takes part again, in a new generation.
  Status admit(PipelineHost& host, SpiAllocator& spis, uint32_t rank);
  // Rounds no longer wait for the rank, from a new generation on.
  void exclude(PipelineHost& host, SpiAllocator& spis, uint32_t rank);
  // Since the box before was lost the optimizer goes on without the state that it had there.
  bool has_restarted_optimizer() const;
  // The open round of each chunk; where pushes are applied on arrival, the one that the rank pushes
  // next.
  std::vector<uint32_t> open_rounds(PipelineHost& host, uint32_t rank = 0) const;
  // Of the open rounds, the one of each chunk that a rank which is new begins with: weights that
  // another gives back it only fetches.
  std::vector<uint32_t> rounds_for_newcomer(std::vector<uint32_t> open_rounds) const;
  // A rank that is new begins each tensor at its chunks' least round, and needs what that gave of
  // the others: of some it died with the box before, and only other ranks have it.
  bool lacks_for_newcomer(const std::vector<uint32_t>& open_rounds) const;
  // Chunks whose open round only this rank can finish, by giving back what it consumed.
  std::vector<uint32_t> copies_owed(uint32_t rank, const std::vector<uint32_t>& open_rounds) const;
  uint32_t epoch() const { return epoch_; }
  uint32_t generation() const { return generation_; }
  // It joins another way than the ones before; does its path carry the job's fragments?
  Status check_path(const PipelineHost& host, const Member& member, uint32_t rank) const;

  uint32_t fragment_bytes() const { return fragment_bytes_; }
  // Fills everything of a SESSION that the job knows, for one rank.
  void describe(uint32_t rank, const PipelineHost& host, proto::Session& session) const;
  uint64_t bytes_on(uint32_t pipeline) const { return pipeline_bytes_[pipeline]; }  // per round
  JobView view(uint64_t now_ns) const;
  StragglerView stragglers(uint64_t now_ns) const;
  // job_trace.cc: of a job that runs, with model BSP; a trace of before is gone. It is recorded
  // until `until_ns`, and forgotten a minute later.
  void begin_trace(PipelineHost& host, size_t events_max, uint64_t now_ns, uint64_t until_ns);
  void end_trace(PipelineHost& host);
  void tick_trace(PipelineHost& host, uint64_t now_ns);
  // 0: there is none.
  uint64_t traced_until_ns() const { return traces_.empty() ? 0 : traces_until_ns_; }
  // Adds what was recorded, of which nothing more is then.
  void add_trace(PipelineHost& host, TraceView& view);
  // job_snapshot.cc. Of a job that runs, in mode optimize and with model BSP: a copy of all its
  // chunks as they are when `round` is open, taken by the pipelines until end_cut().
  uint64_t cut_bytes() const;
  using Cuts = std::vector<std::shared_ptr<pipeline::StateCut>>;  // by pipeline that it uses
  Result<Cuts> begin_cut(PipelineHost& host, uint32_t round) const;
  // Has some more copied of what rests there.
  void look_at_cut(PipelineHost& host, const Cuts& cuts) const;
  void end_cut(PipelineHost& host) const;
  snapshot::PartHead part_head() const;
  // Of its ranks, as snapshots list them: which run it is.
  std::vector<uint64_t> incarnations() const;
  // Some chunk would begin with initial weights. Ranks resume, and all have stated their rounds.
  bool begins_somewhere(const PartState* state) const;
  // Some chunk would go on with weights that a rank gives back, but without the momentum and
  // moments that it had. So said of the same.
  bool lacks_moments(const PartState* state) const;
  // "4 chunks of at most 32256 bytes; pipeline 0: 2 chunks, 40014 bytes a round, 80156 of memory;
  // ..."
  std::string placement() const;

  uint64_t join_timeout_ns = 0;
  uint64_t lost_timeout_ns = 0;
  std::optional<Error> epoch_awaited = {};  // all are here, but no epoch: why
  uint64_t recovering_since_ns = 0;         // when the first rank resumed
  uint64_t barrier_released = 0;
  std::optional<StateTransfer> transfer = {};   // gathering
  std::optional<StateSource> opened_from = {};  // running
  uint64_t restoring = 0;                       // a snapshot is read: by which request; 0: none is
  // What it begins with, once that is known; no chunks any more once it runs.
  std::optional<snapshot::Restored> restored = {};
  // Recovering: what it goes on with instead of momentum and moments that were lost, once that is
  // known; no chunks any more once it runs.
  std::optional<snapshot::Restored> moments = {};
  uint64_t moments_due_ns = 0;  // they are read, but not waited for any longer
  uint64_t snapshot_due_ns = 0;
  // Of a job that is relayed, or wants a copy, once all its ranks have joined.
  std::unique_ptr<Relay> relay = {};
  uint64_t relay_number = 0;  // which one it is
  Backup backup = {};

 private:
  // That of the state, if it has clocks.
  Result<uint32_t> choose_fragment_bytes(const PipelineHost& host, const PartState* state) const;
  Result<uint32_t> widest_fragment_bytes(const PipelineHost& host) const;
  uint32_t fits(const PipelineHost& host, const Member& member) const;
  void view_sync(JobView& view) const;
  void view_backup(JobView& view) const;
  void view_stragglers(JobView& view) const;
  void hand_back_traces(PipelineHost& host);
  void view_nonfinite(JobView& view, uint64_t now_ns) const;
  std::vector<int32_t> chunk_priorities() const;
  std::vector<uint32_t> chunk_counts() const;  // by tensor
  const char* priority_source() const;
  std::vector<pipeline::ShardSpec> shard_specs(const std::vector<ChunkStart>& starts) const;
  std::vector<ConsumedRounds> stated() const;
  Status allocate_sessions(SpiAllocator& spis, std::vector<pipeline::ShardSpec>& specs) const;
  void repeat_learning_rate(PipelineHost& host);
  Result<std::vector<ChunkStart>> plan_starts(const PartState* state) const;
  // Where the model is not BSP.
  Result<std::vector<ChunkStart>> plan_starts_by_clocks(const PartState* state) const;
  bool continues_by_clocks(const PartState& state) const;
  bool has_shape_of(const PartState& state) const;
  Status build(const PipelineHost& host, std::vector<pipeline::ShardSpec>& specs,
               const PartState* state,
               std::vector<std::unique_ptr<pipeline::JobShard>>& shards) const;
  void begin_with_snapshot(std::vector<std::unique_ptr<pipeline::JobShard>>& shards) const;
  Status install(PipelineHost& host, std::vector<std::unique_ptr<pipeline::JobShard>> shards);
  static void release(SpiAllocator& spis, const std::vector<pipeline::ShardSpec>& specs);

  JobSpec spec_;
  std::vector<Member> members_;
  uint64_t created_ns_ = 0;
  uint32_t epoch_ = 0;
  uint32_t generation_ = 1;
  uint32_t fragment_bytes_ = 0;
  wire::PriorityPolicy priority_policy_ = wire::PriorityPolicy::kExplicit;
  std::vector<int32_t> priorities_;  // by tensor; empty: as registered
  std::optional<proto::SetPriorities> priorities_set_;
  std::vector<ChunkStart> starts_;                             // by chunk; empty: all at round 0
  std::vector<uint32_t> pipelines_;                            // of the box, that the job uses
  std::vector<uint8_t> chunk_pipeline_;                        // by chunk, an index into pipelines_
  std::vector<uint64_t> pipeline_bytes_;                       // by pipeline of the box
  std::vector<uint64_t> footprints_;                           // by pipeline of the box
  std::vector<std::unique_ptr<pipeline::JobShard>> shards_;    // as pipelines_, or none
  std::vector<std::unique_ptr<pipeline::RoundTrace>> traces_;  // as shards_, or none
  uint64_t traces_begun_ns_ = 0;
  uint64_t traces_until_ns_ = 0;
};

}  // namespace pbox::appliance
