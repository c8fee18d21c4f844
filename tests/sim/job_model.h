// A job seen from outside: the location of its chunks, the correct results, and the history of its
// members. A job of several parts has a model for each part.
#pragma once

#include <array>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "appliance/snapshot/snapshot.h"
#include "tests/sim/block_oracle.h"
#include "tests/sim/collective_oracle.h"
#include "tests/sim/delta_oracle.h"
#include "tests/sim/network.h"
#include "tests/sim/oracle.h"
#include "tests/sim/read_oracle.h"

namespace pbox::sim {

struct JobModel {
  struct Chunk {
    uint32_t tensor = 0;
    uint32_t first_element = 0;
    uint32_t elements = 0;
  };

  JobModel(uint64_t seed, uint32_t index, const JobOptions& options, HostId first_host,
           bool checks);
  JobModel(const JobModel&) = delete;  // not movable, because its parts refer to each other
  JobModel& operator=(const JobModel&) = delete;

  // Begins a process of the rank and returns its number, which selects its gradients. In mode
  // optimize, where results do not show the sum, all processes of a rank have the same number.
  uint32_t begin_process(uint32_t rank);

  // Returns what is wrong with a chunk's result; nothing if it is right. If ranks may be excluded,
  // each fragment must be the sum of a set of ranks that includes `ranks`, one process per rank.
  std::optional<std::string> wrong(uint32_t chunk, uint32_t round, uint32_t ranks,
                                   const std::byte* bytes);
  // Like wrong(), for a result that a rank has consumed. All other ranks must then consume the same
  // bytes, as long as the rank lives and is in the job.
  std::optional<std::string> consume(uint32_t rank, uint32_t chunk, uint32_t round,
                                     const std::byte* bytes);
  void forget(uint32_t rank);
  // Called when the job has begun anew: rounds are counted from 0, no rank has consumed any, and
  // the consistency models are those that were registered.
  void begin_run();
  // Returns the number of ranks in the fragment of a result that has the fewest. wrong() must just
  // have found the result right, in a job that may lack ranks.
  uint32_t contributors(uint32_t chunk, uint32_t round) const {
    return right_[chunk][round & 1].contributors;
  }
  // Called when a rank is asked to give back these chunks' results of the open rounds, because a
  // box has lost their state. Fails if nothing can have caused the loss.
  void give_back(std::span<const uint32_t> give, std::span<const uint32_t> open_rounds);
  // Divides a chunk's state in a snapshot into weights and optimizer state.
  Oracle::State saved_state(const pipeline::ChunkState& state) const;
  // Returns whether a chunk can have had this state, which is from a snapshot, after `rounds`
  // rounds.
  bool has_had(const pipeline::ChunkState& state, uint64_t rounds);
  // Called when the job begins with this snapshot, or with none if the snapshot's number is 0.
  void begin_with(const snapshot::Restored& restored);
  // Returns the number of optimizer steps in the snapshot with which the job began.
  uint64_t steps_before() const { return began_with_.steps; }
  // Returns what is wrong with a chunk that a rank has read in a round, if the model is not BSP.
  // `fetches`: see ReadOracle::Part.
  std::optional<std::string> read(uint32_t rank, uint32_t chunk, uint32_t round, bool fetches,
                                  const std::byte* bytes);
  // Returns what is wrong with a fragment's sums at the box, from element `first` of the chunk on.
  // They must contain exactly `ranks`.
  std::optional<std::string> wrong_sums(uint32_t chunk, uint32_t round, uint32_t ranks,
                                        uint32_t first, std::span<const float> sums);

  // The push with an unsound value in a job with guard `reject`; nothing in other jobs.
  struct Push {
    uint32_t rank = 0, round = 0;
  };
  std::optional<Push> rejected() const;
  // Returns whether the chunk's round has no result, because the job's guard rejects a push to it.
  bool is_rejected(uint32_t chunk, uint32_t round) const;

  // Returns what is wrong with a box's result of a round of a compressed chunk. `residue`: what the
  // box's earlier results of the chunk have left. `is_copy`: a rank has given the result back.
  std::optional<std::string> wrong_blocks(uint32_t chunk, uint32_t round, bool is_copy,
                                          std::vector<float>& residue, const std::byte* blocks);
  // Like wrong_blocks(), for mode optimize. DeltaOracle::made() explains the arguments.
  std::optional<std::string> wrong_delta(uint32_t chunk, uint32_t round, DeltaOracle::Held& held,
                                         const std::byte* delta, const float* weights);
  bool is_compressed(uint32_t chunk) const { return blocks && blocks->has(chunk); }
  bool has_deltas(uint32_t chunk) const { return deltas && is_compressed(chunk); }
  // These return the type and size of a chunk's push on the wire, and the size of all its fragments
  // except the last.
  wire::Dtype wire_dtype(uint32_t chunk, uint32_t round) const;
  uint32_t wire_bytes(uint32_t chunk, uint32_t round) const {
    return wire::payload_bytes(wire_dtype(chunk, round), chunks[chunk].elements);
  }
  uint32_t fragment_bytes(uint32_t chunk, uint32_t round, uint32_t path_fragment_bytes) const {
    return wire::fragment_bytes_of(wire_dtype(chunk, round), path_fragment_bytes);
  }

  uint32_t element_bytes() const { return wire::dtype_bytes(options.dtype); }
  // Returns the bits of all ranks. For jobs with known sums only.
  uint32_t all_ranks() const { return (1u << options.workers) - 1; }
  // Returns false if sums mean nothing, because a rogue member may push anything or there are too
  // many ranks. Collectives have an oracle of their own.
  bool has_known_sums() const {
    return can_be_replayed() && !(options.weighted && options.is_relaxed());
  }
  // Returns true also for a weighted job of model `drop`. Its sums are not whole numbers, and only
  // SyncReplay knows them.
  bool can_be_replayed() const {
    return !options.rogue && !options.is_collective && options.workers <= kRanksToldApart;
  }
  // Returns how many rounds of the chunk the ranks begin in the whole run.
  uint64_t rounds(uint32_t chunk) const {
    return collectives ? collectives->rounds(chunks[chunk].tensor) : options.rounds;
  }
  bool may_lack_ranks() const { return options.on_worker_lost == control::LostPolicy::kPartial; }
  // Returns whether a new process, with pushes of its own, has taken some rank's place.
  bool has_replacements() const;

  uint32_t index;  // in Rack::jobs
  bool checks;     // see Rack::checks
  const JobOptions& options;
  HostId first_host;  // host of rank 0; rank r is on first_host + r
  std::string name;   // as the product knows it: the same for all parts of a job
  std::string title;  // the part's name in messages: "job0", or "job0/1" if there are several parts
  Gradients gradients;
  Oracle oracle;
  ReadOracle reads;                             // used if the model is not BSP
  std::optional<CollectiveOracle> collectives;  // set if the job is one of collectives
  std::vector<Chunk> chunks;                    // by id
  std::optional<BlockOracle> blocks;            // set if a tensor is compressed
  std::optional<DeltaOracle> deltas;            // set if one is, and the mode is optimize

  // The consistency models in force, by tensor.
  std::vector<wire::SyncSpec> models;
  // While an operator changes the models: those before the change, because the parts of a job
  // change one after another. Otherwise empty.
  std::vector<wire::SyncSpec> former_models;
  // True if a part may have lost changes of its models, because its box was lost and it continues
  // from a backup copy or begins anew.
  bool may_have_registered_models = false;
  const wire::SyncSpec& model_of(uint32_t chunk) const { return models[chunks[chunk].tensor]; }

  bool may_fail = false;    // a disturbance has happened that the job need not survive
  std::set<uint32_t> lost;  // ranks that may fail although the others must not
  bool disturbed = false;   // some rank may be declared lost, now or later
  bool is_ending = false;   // a rank has left, or has failed for good
  // True if the job's box was lost, or seemed lost to another box that asked it for the job's
  // state.
  bool may_lose_state = false;
  // By chunk: the optimizer state with which the chunk continues once ranks have given its weights
  // back.
  std::map<uint32_t, Oracle::State> adopted;
  std::set<uint32_t> awaited;  // ranks of an elastic job that have never joined yet
  uint32_t epoch = 0;          // the newest epoch of an elastic or relaxed job
  std::set<uint32_t> at_barrier;
  std::set<uint32_t> done;  // ranks that may leave, or have failed for good

 private:
  std::optional<uint32_t> ranks_in(const Chunk& chunk, uint32_t round, uint32_t ranks,
                                   const std::byte* bytes, uint32_t first, uint32_t count) const;
  uint32_t silent_ranks(std::span<const double> sums) const;
  // Returns the ranks that sums from element `first` on contain; nothing if they are not sums of
  // whole contributions.
  std::optional<uint32_t> contributors(const Chunk& chunk, uint32_t round, uint32_t first,
                                       std::span<const double> sums) const;
  bool has_lost_residues() const { return has_replacements() || has_new_process_; }
  std::optional<std::string> wrong_decoded(uint32_t chunk, uint32_t round, uint32_t ranks,
                                           uint32_t first, std::span<const float> sums);
  void open_blocks();
  void know_pushes(uint32_t chunk, uint32_t round);
  float result(double sum, uint32_t count) const;

  struct {
    uint64_t number = 0, steps = 0;
    bool is_known = false;
  } began_with_;  // the snapshot with which the job began
  uint32_t fragment_bytes_;
  std::vector<uint32_t> processes_;  // number of processes so far, by rank
  bool has_new_process_ = false;     // some rank has had more than one process
  struct Consumed {
    std::vector<std::byte> bytes;
    std::set<uint32_t> ranks;
  };
  // Results that ranks have consumed, by chunk and round: sums and deltas only, because the oracle
  // knows all other results of optimizers.
  std::vector<std::map<uint32_t, Consumed>> consumed_;
  // The last results that were found right without an oracle, by chunk and round & 1. They are kept
  // because boxes and ranks compare the same bytes again and again.
  struct Right {
    uint32_t round = 0;
    uint32_t ranks = 0;         // the ranks that are in all of its fragments, as bits
    uint32_t contributors = 0;  // number of ranks in the fragment that has the fewest
    std::vector<std::byte> bytes = {};
  };
  std::vector<std::array<Right, 2>> right_;
};

}  // namespace pbox::sim
