// This worker in all parts of a job, as one: operations on tensors go to the parts that have
// pieces of them and end when all of these have, and what one part's membership comes to holds for
// the job. As pure as they are, and of one thread at a time.
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
  // `plan`: what a box has answered. options.box: that box.
  PartSet(const MembershipOptions& options, const proto::PartMap& plan,
          const std::vector<TensorSpec>& tensors, const proto::Optimizer& optimizer);

  // The parts that have chunks. Their events are the driver's to tell (part_driver.h).
  size_t size() const { return parts_.size(); }
  Membership& operator[](size_t part) { return parts_[part]->membership; }

  // Once each has joined: an error if this worker cannot begin in all of them alike.
  Status begin();

  // As Membership's, of the job's tensors; only after begin().
  void start(const Operation& operation);
  void ask_barrier() { parts_[0]->membership.ask_barrier(); }
  void ask_priorities(wire::PriorityPolicy policy, std::span<const int32_t> by_tensor);
  void ask_learning_rate(float learning_rate);
  void leave();

  // Tensors of which every piece is complete, in order of completion; empties the list.
  std::vector<uint32_t> take_completed();
  uint32_t round(uint32_t tensor) const;
  uint32_t contributors(uint32_t tensor) const;

  // Of the first part that is over; then all are, as soon as this has been asked.
  const std::optional<Error>& failure();
  // The loss that has lasted longest, with the box that is looked for.
  struct Loss : Membership::Loss {
    std::string box;
  };
  std::optional<Loss> loss() const;
  uint64_t recoveries() const;
  uint64_t optimizer_restarts() const;
  // Of the parts whose optimizer's state was lost, that which goes on with the oldest.
  Membership::Restored optimizer_state() const;
  // Of all parts, once all have joined.
  const Membership::Restored& restored() const { return parts_[0]->membership.history().restored; }
  uint64_t barriers_released() const {
    return parts_[0]->membership.requests().barriers_released();
  }
  uint64_t learning_rates_set() const;  // of those asked for, in every part
  std::vector<uint32_t> absent_ranks() const;

  struct Late : Laggard {
    std::string box;  // of the piece that is waited for
  };
  Late laggard(uint32_t tensor, uint64_t now_ns) const;
  Statistics statistics() const;
  uint32_t pipeline_count() const;
  const proto::Session& session() const { return parts_[0]->membership.session(); }

  // As Exchange's, of all parts. `capacity` holds for each.
  void trace_chunks(size_t capacity);
  size_t take_chunk_times(std::span<ChunkTimes> times);

 private:
  struct Part {
    Part(const MembershipOptions& options, const std::vector<TensorSpec>& tensors,
         const proto::Optimizer& optimizer)
        : membership(options, tensors, optimizer) {}
    Membership membership;
    // By tensor of the part: which one of the job it is a piece of, its first chunk there, and how
    // many there are.
    std::vector<uint32_t> tensors;
    std::vector<uint32_t> first_chunks;
    std::vector<uint32_t> chunk_counts;
    uint32_t first_pipeline = 0;  // of all parts' pipelines in a row
  };
  struct Piece {
    uint32_t part = 0;    // index into parts_
    uint32_t tensor = 0;  // of the part
    uint64_t offset = 0;  // bytes into the tensor
    // Its part had finished a round that others had not when this worker took a lost rank's place:
    // the result is there to be fetched.
    bool is_ahead = false;
  };

  const Exchange& exchange(const Piece& piece) const {
    return *parts_[piece.part]->membership.exchange();
  }

  std::vector<std::unique_ptr<Part>> parts_;
  std::vector<std::vector<Piece>> pieces_;  // by tensor
  std::vector<uint32_t> left_;              // by tensor: pieces of its operation not complete
  std::optional<Error> failure_;
};

}  // namespace pbox::worker
