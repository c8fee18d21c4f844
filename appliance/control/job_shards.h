// The shards of one part on the pipelines of this box: where each chunk is placed, and, while the
// part runs, the commands that reach its shards. Used on the control thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "appliance/control/job_spec.h"
#include "appliance/control/part_models.h"
#include "appliance/control/pipeline_host.h"
#include "appliance/control/roster.h"
#include "appliance/control/spi_allocator.h"
#include "appliance/control/upstream.h"
#include "pipeline/state/state_cut.h"

namespace pbox::control {

// Where a part may be placed on a box.
struct Placement {
  std::vector<uint64_t> loads_bytes;  // bytes that other jobs move in a round, by pipeline
  // The pipeline that gets all chunks. If it is absent, a job in one part uses all pipelines, and a
  // part of a divided job uses the least loaded one.
  std::optional<uint32_t> pipeline = {};
};

class JobShards {
 public:
  // Copies of the part's state, one for each pipeline that the part uses.
  using Cuts = std::vector<std::shared_ptr<pipeline::StateCut>>;
  // Makes the seal of a new session. `index`: into pipelines(); `spi`: the session's number.
  using SealMaker = std::function<Result<seal::SessionSeal>(uint32_t index, uint32_t spi)>;
  using Shards = std::vector<std::unique_ptr<pipeline::JobShard>>;

  // Places the chunks; allocates no memory for their values. `spec` must outlive this object.
  JobShards(const JobSpec& spec, const Placement& placement);

  // Returns whether the part is installed on the pipelines.
  bool running() const { return !shards_.empty(); }
  // Pipelines of the box that the part uses, by their index in the session. A job in several parts
  // uses one pipeline for each part. A backup copy uses one if it fits there.
  const std::vector<uint32_t>& pipelines() const { return pipelines_; }
  // The pipeline of each chunk, as an index into pipelines().
  const std::vector<uint8_t>& chunk_pipeline() const { return chunk_pipeline_; }
  uint32_t chunk_count() const { return static_cast<uint32_t>(chunk_pipeline_.size()); }
  // Bytes that the part moves on a pipeline of the box in a round.
  uint64_t bytes_on(uint32_t pipeline) const {
    PBOX_CHECK(pipeline < pipeline_bytes_.size());
    return pipeline_bytes_[pipeline];
  }
  // Bytes of the part's shard on each pipeline of the box, also while it still gathers.
  const std::vector<uint64_t>& footprints() const { return footprints_; }

  // Groups of chunks move between pipelines as a whole. They have about the same number of bytes. A
  // part of a divided job, which is on one pipeline, is one group.
  //
  // Returns the pipeline of each group.
  const std::vector<uint32_t>& group_pipelines() const { return group_pipelines_; }
  // Returns footprints() as they would be after move_groups(). `pipelines`: a pipeline of the box
  // for each group.
  std::vector<uint64_t> footprints_with(const JobSpec& spec,
                                        const std::vector<uint32_t>& pipelines) const;
  // Places each group on the pipeline that `pipelines` has for it. The part must not run, and must
  // have reserved nothing.
  void move_groups(const JobSpec& spec, const std::vector<uint32_t>& pipelines);
  // The shards, by index in pipelines(); empty unless the part is running.
  const Shards& all() const { return shards_; }
  // Returns the chunk on its shard. The part must be running.
  pipeline::Chunk* find(uint32_t chunk) const;
  // Rounds of chunks finished since the part was opened.
  uint64_t rounds_finished() const;

  // Allocates the memory of the shards that `specs` (by index in pipelines()) describe, and begins
  // to prefault it. Does so for all of them or for none.
  Status reserve(PipelineHost& host, const std::vector<pipeline::ShardSpec>& specs);
  bool has_reserved() const { return !reserved_.empty(); }
  // Returns whether reserved memory is still being prefaulted.
  bool is_prefaulting() const;
  // Returns what was reserved for the shard at `index` in pipelines(), or nothing.
  pipeline::JobShard::Reserved take_reserved(size_t index);
  // Gives each present session of `specs` (by index in pipelines()) a session number, or gives
  // none.
  Status allocate_sessions(SpiAllocator& spis, std::vector<pipeline::ShardSpec>& specs) const;
  static void release_sessions(SpiAllocator& spis, const std::vector<pipeline::ShardSpec>& specs);
  // Installs one shard for each of pipelines(), or none.
  Status install(PipelineHost& host, Shards shards);
  // Makes the pipelines stop using the shards, whose contents can then be read. close() must
  // follow.
  void detach(PipelineHost& host) const;
  // Takes the shards back from the pipelines and frees them.
  void close(PipelineHost& host, SpiAllocator& spis);

  // Gives the rank new sessions in `generation`. On return its former sessions are void on every
  // pipeline. After an error nothing has changed.
  Status admit(PipelineHost& host, SpiAllocator& spis, uint32_t rank, uint32_t generation,
               const Member& member, const SealMaker& make_seal);
  // Excludes the rank: from `generation` on, no round waits for it.
  void exclude(PipelineHost& host, SpiAllocator& spis, uint32_t rank, uint32_t generation);
  void set_learning_rate(PipelineHost& host, float learning_rate);
  // `by_chunk`: the priorities of all chunks of the part.
  void set_priorities(PipelineHost& host, const std::vector<int32_t>& by_chunk);
  // The consistency models of the part.
  PartModels& models() { return models_; }
  const PartModels& models() const { return models_; }
  // Changes the models. Each chunk changes its model between two of its pushes. Refuses the whole
  // change if some tensor cannot have the new model. The part must be running, because a state that
  // is handed over would replace the change.
  Status change_sync(PipelineHost& host, const SyncChange& change);
  // Lets the controller of adaptive tensors look at the part, which is running. Returns its new
  // decision, which the pipelines follow already; null if there is none. Call it on each tick.
  const SyncDecision* control_sync(PipelineHost& host, uint64_t now_ns);
  // Sets the credit of each session, and the tenant's weight. Does nothing if the part does not run
  // on this pipeline of the box, or if both are set there already.
  void set_credit(PipelineHost& host, uint32_t pipeline, uint32_t credit_bytes, uint32_t weight);
  // Returns the credit that was set. The part must run on this pipeline of the box.
  uint32_t credit_on(uint32_t pipeline) const;
  // Returns the open round of each chunk. Where pushes are applied on arrival it is the round that
  // `rank` pushes next.
  std::vector<uint32_t> open_rounds(PipelineHost& host, uint32_t rank = pipeline::kNoRank) const;
  std::vector<RelayLane> lanes(PipelineHost& host) const;

  // A cut needs cut_bytes() of memory. From begin_cut() to end_cut() the pipelines copy all chunks
  // as they are when `round` is open. Only in mode optimize. Defined in job_snapshot.cc.
  uint64_t cut_bytes() const;
  Result<Cuts> begin_cut(PipelineHost& host, uint32_t round) const;
  // Copies some more of the chunks that rest at the cut.
  void continue_cut(PipelineHost& host, const Cuts& cuts) const;
  void end_cut(PipelineHost& host) const;

 private:
  // Where chunks are, as pipelines() and chunk_pipeline().
  struct Map {
    std::vector<uint32_t> pipelines;
    std::vector<uint8_t> chunk_pipeline;
  };
  void form_groups(const std::vector<uint32_t>& chunk_bytes);
  Map map_with(const std::vector<uint32_t>& group_pipelines) const;
  std::vector<uint64_t> footprints_of(const JobSpec& spec, const Map& map) const;
  void count_bytes(const std::vector<uint32_t>& chunk_bytes);
  // Returns the values of each shard's chunks, in the shard's order.
  template <typename Value>
  std::vector<std::vector<Value>> by_shard(const std::vector<Value>& by_chunk) const;

  void set_sync(PipelineHost& host) const;

  PartModels models_;
  std::vector<uint32_t> pipelines_;
  std::vector<uint8_t> chunk_pipeline_;
  std::vector<uint64_t> pipeline_bytes_;  // by pipeline of the box
  std::vector<uint64_t> footprints_;      // by pipeline of the box
  std::vector<uint16_t> chunk_group_;
  std::vector<uint32_t> group_pipelines_;
  std::vector<pipeline::JobShard::Reserved> reserved_;  // as pipelines_, or empty
  Shards shards_;                                       // as pipelines_, or empty
  struct Share {
    uint32_t credit_bytes = 0;  // 0 if none was set
    uint32_t weight = 0;
    bool operator==(const Share&) const = default;
  };
  std::vector<Share> shares_;  // as shards_
};

}  // namespace pbox::control
