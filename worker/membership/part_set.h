// Combines a worker's memberships in all parts of a job. An operation on a tensor goes to every
// part that owns a piece of it, and ends when all pieces are complete. A failure of one part's
// membership ends the whole job. Pure, like the memberships; used by one thread at a time.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "worker/membership/membership.h"

namespace pbox::worker {

class PartSet {
 public:
  // `map`: the part map that the box at options.box has sent. If options.parts is above 1, the
  // tensors are those of options.part, and that box has all parts.
  PartSet(const MembershipOptions& options, const proto::PartMap& map,
          const std::vector<TensorSpec>& tensors, const proto::Optimizer& optimizer);

  // The parts that own chunks. The driver reports events to each of them (part_driver.h).
  size_t size() const { return parts_.size(); }
  Membership& operator[](size_t part) { return parts_[part]->membership; }

  // Call once after every part has joined. Returns an error if this worker cannot start in all of
  // them at the same round and snapshot.
  Status begin();

  // Like Membership's functions, for the job's tensors. Only after begin().
  void start(const Operation& operation);
  void ask_barrier() { parts_[0]->membership.ask_barrier(); }
  void ask_priorities(wire::PriorityPolicy policy, std::span<const int32_t> by_tensor);
  void ask_learning_rate(float learning_rate);
  void ask_sync(const proto::SetSync& request);
  void set_loss_scale(float loss_scale, uint64_t age) { verdict_->set_loss_scale(loss_scale, age); }
  // The newest verdict that this rank holds; nullopt before the first.
  const std::optional<proto::StepVerdict>& verdict() const { return verdict_->held(); }
  void leave(const std::string& reason);  // `reason`: see Membership::leave

  // Takes the tensors whose pieces are all complete, in order of completion.
  std::vector<uint32_t> take_completed();
  uint32_t round(uint32_t tensor) const;
  uint32_t contributors(uint32_t tensor) const;

  // Returns the failure of the first part that is over; nullopt if none is. If one is over,
  // abandons all other parts.
  const std::optional<Error>& failure();
  // The loss that has lasted longest, with the box that is being searched for.
  struct Loss : Membership::Loss {
    std::string box;
  };
  std::optional<Loss> loss() const;
  uint64_t recoveries() const;
  uint64_t optimizer_restarts() const;
  // Returns the oldest snapshot with which a part that had lost the optimizer's state continued.
  Membership::Restored optimizer_state() const;
  // Returns the snapshot that the job began with. It is the same in all parts once all have joined.
  const Membership::Restored& restored() const { return parts_[0]->membership.history().restored; }
  uint64_t barriers_released() const {
    return parts_[0]->membership.requests().barriers_released();
  }
  uint64_t learning_rates_set() const;  // those that every part has confirmed
  uint64_t syncs_answered() const;      // those that every part has answered
  // Returns why some part has refused model request number `sequence`; empty if none has.
  std::string sync_refusal(uint64_t sequence) const;
  std::vector<uint32_t> absent_ranks() const;

  struct Late : Laggard {
    std::string box;  // the box of the piece that is waited for
  };
  Late laggard(uint32_t tensor, uint64_t now_ns) const;
  Statistics statistics() const;
  uint32_t pipeline_count() const;
  const proto::Session& session() const { return parts_[0]->membership.session(); }

  // Like Exchange's functions, over all parts. `capacity` applies to each part.
  void trace_chunks(size_t capacity);
  size_t take_chunk_times(std::span<ChunkTimes> times);

 private:
  struct Part {
    Part(const MembershipOptions& options, const std::vector<TensorSpec>& tensors,
         const proto::Optimizer& optimizer)
        : membership(options, tensors, optimizer) {}
    Membership membership;
    // Indexed by tensor of the part: the job's tensor that it is a piece of, the first chunk of the
    // piece in the job, and the number of its chunks.
    std::vector<uint32_t> tensors;
    std::vector<uint32_t> first_chunks;
    std::vector<uint32_t> chunk_counts;
    uint32_t first_pipeline = 0;  // index among the pipelines of all parts
  };
  struct Piece {
    uint32_t part = 0;    // index into parts_
    uint32_t tensor = 0;  // index among the part's tensors
    uint64_t offset = 0;  // bytes into the job's tensor
    // When this worker took a lost rank's place, the part had finished rounds that other parts had
    // not. The newest result has to be fetched: the next operation pushes nothing to this part.
    bool is_ahead = false;
  };

  const Exchange& exchange(const Piece& piece) const {
    return *parts_[piece.part]->membership.exchange();
  }

  uint32_t world_size_;
  bool optimizes_;     // mode optimize
  bool drops_rounds_;  // model `drop`
  std::shared_ptr<HeldVerdict> verdict_;
  std::vector<std::unique_ptr<Part>> parts_;
  std::vector<std::vector<Piece>> pieces_;  // indexed by tensor of the job
  std::vector<uint32_t> left_;  // indexed by tensor: pieces of its operation that are not complete
  std::optional<Error> failure_;
};

}  // namespace pbox::worker
