// Barriers, learning rates and consistency models that this rank has requested on the control
// connection. Keeps each request until the box has confirmed it, so that it can be repeated in the
// next session.
//
// Sequence numbers start at 1 in each rank. The box counts barriers through the whole job, so a
// rank that joins later adds the number that had been released before it joined.
//
// Pure; used by one thread at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "nic/wire/control.pb.h"

namespace pbox::worker {

class ControlRequests {
 public:
  // The first session begins. `released` barriers were released before this worker joined.
  void begin(uint64_t released) {
    PBOX_CHECK(barriers_released_ == 0);
    barrier_base_ = released;
  }

  // Requests one more barrier and returns its message.
  proto::WorkerMessage request_barrier() {
    ++barriers_requested_;
    return barrier_message();
  }
  // Requests a learning rate and returns its message.
  proto::WorkerMessage request_learning_rate(float learning_rate) {
    learning_rates_.push_back(learning_rate);
    return learning_rate_message(learning_rates_set_ + learning_rates_.size(), learning_rate);
  }
  // Requests a consistency model and returns its message.
  proto::WorkerMessage request_sync(const proto::SetSync& request) {
    syncs_.push_back(request);
    syncs_.back().set_sequence(syncs_answered_ + syncs_.size());
    return sync_message(syncs_.back());
  }
  // Returns the requests that the box of a new session may never have received, or whose
  // confirmation was lost. The box takes the highest barrier for all earlier ones.
  std::vector<proto::WorkerMessage> unconfirmed() const {
    std::vector<proto::WorkerMessage> messages;
    if (barriers_requested_ > barriers_released_) messages.push_back(barrier_message());
    uint64_t sequence = learning_rates_set_;
    for (const float rate : learning_rates_) {
      messages.push_back(learning_rate_message(++sequence, rate));
    }
    for (const proto::SetSync& request : syncs_) messages.push_back(sync_message(request));
    return messages;
  }
  // For a JOIN that resumes: writes into it what has been requested and what has been confirmed.
  void describe(proto::Join& join) const {
    join.set_barrier_sequence(barrier_base_ + barriers_requested_);
    join.set_barriers_released(barrier_base_ + barriers_released_);
    join.set_learning_rates_set(learning_rates_set_);
    join.set_learning_rate(learning_rate_);
  }

  // Returns the newest learning rate that the box has confirmed; nullopt if it has confirmed none.
  std::optional<float> learning_rate() const {
    return learning_rates_set_ > 0 ? std::optional(learning_rate_) : std::nullopt;
  }

  // The box confirms every barrier up to `sequence`, counted through the job.
  void on_barrier_released(uint64_t sequence) {
    const uint64_t own = sequence > barrier_base_ ? sequence - barrier_base_ : 0;
    barriers_released_ = std::clamp(own, barriers_released_, barriers_requested_);
    PBOX_CHECK(barriers_released_ <= barriers_requested_);
  }
  // The box confirms every learning rate up to `sequence`. Returns the newest one that this
  // confirms; nullopt if it confirms none.
  std::optional<float> on_learning_rate_set(uint64_t sequence) {
    std::optional<float> newest;
    for (; learning_rates_set_ < sequence && !learning_rates_.empty(); ++learning_rates_set_) {
      newest = learning_rate_ = learning_rates_.front();
      learning_rates_.pop_front();
    }
    return newest;
  }

  // The box answers the oldest request. Other answers are repetitions.
  void on_sync_set(const proto::SetSync& answer) {
    if (answer.sequence() != syncs_answered_ + 1 || syncs_.empty()) return;
    syncs_.pop_front();
    ++syncs_answered_;
    if (!answer.refusal().empty()) sync_refusals_[answer.sequence()] = answer.refusal();
  }

  // Return how many of the requested barriers, learning rates and models the box has answered.
  uint64_t barriers_released() const { return barriers_released_; }
  uint64_t learning_rates_set() const { return learning_rates_set_; }
  uint64_t syncs_answered() const { return syncs_answered_; }
  // Returns why the box has refused model request number `sequence`; empty if it has not.
  std::string sync_refusal(uint64_t sequence) const {
    const auto found = sync_refusals_.find(sequence);
    return found == sync_refusals_.end() ? "" : found->second;
  }

 private:
  proto::WorkerMessage barrier_message() const {
    proto::WorkerMessage message;
    message.mutable_barrier()->set_sequence(barrier_base_ + barriers_requested_);
    return message;
  }
  static proto::WorkerMessage sync_message(const proto::SetSync& request) {
    proto::WorkerMessage message;
    *message.mutable_set_sync() = request;
    return message;
  }
  static proto::WorkerMessage learning_rate_message(uint64_t sequence, float learning_rate) {
    proto::WorkerMessage message;
    message.mutable_set_learning_rate()->set_learning_rate(learning_rate);
    message.mutable_set_learning_rate()->set_sequence(sequence);
    return message;
  }

  uint64_t barrier_base_ = 0;  // barriers that were released before this worker joined
  uint64_t barriers_requested_ = 0, barriers_released_ = 0;
  uint64_t learning_rates_set_ = 0;
  std::deque<float> learning_rates_;  // requested and not confirmed
  float learning_rate_ = 0;           // the last one that was confirmed
  uint64_t syncs_answered_ = 0;
  std::deque<proto::SetSync> syncs_;  // requested and not answered
  std::map<uint64_t, std::string> sync_refusals_;
};

}  // namespace pbox::worker
