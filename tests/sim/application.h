// What a training process does with its tensors: rounds one after another, in an order and at a
// pace of its own, checking every result it gets and that nobody touches its buffers in between.
#pragma once

#include <optional>
#include <vector>

#include "base/rng.h"
#include "tests/sim/rack.h"
#include "worker/membership/membership.h"

namespace pbox::sim {

class Application {
 public:
  Application(JobModel& job, uint32_t rank, uint64_t seed);

  // Starts whatever is due. Returns when something will be, by the clock that now_ns is of;
  // UINT64_MAX: not before an operation completes.
  uint64_t start_due(worker::Membership& membership, uint64_t now_ns, uint64_t rack_now_ns);
  void completed(uint32_t tensor, uint64_t now_ns);
  // The process is a new one in a job that has begun: where each tensor goes on.
  void resume(const worker::Exchange& exchange, uint64_t now_ns);

  // Also that of others, where whoever lags behind needs them to go on.
  bool done() const;
  // Operations of which the box dropped some part; nothing once that is not counted any more.
  std::optional<uint64_t> operations_dropped() const;
  uint64_t rounds_completed() const { return rounds_completed_; }
  // When the oldest operation that is not complete began, in rack time; UINT64_MAX: there is none.
  uint64_t oldest_start_ns() const;
  std::string waiting_for() const;

 private:
  struct Tensor {
    uint32_t round = 0;  // the next to start, or the one under way
    bool busy = false;
    bool fetches = false;  // the weights of the round before come first
    uint64_t ready_ns = 0;
    uint64_t started_ns = 0;
    uint32_t input_crc = 0;
    std::vector<std::byte> input, output;
  };

  bool may_start(const Tensor& tensor) const;
  // Its rounds are done, but others need a quorum.
  bool goes_on() const;
  void fill(uint32_t index, std::vector<std::byte>& input);
  uint64_t think_ns(uint32_t round);
  void start(worker::Membership& membership, uint32_t index, uint64_t rack_now_ns);
  void check_result(uint32_t index);
  static void scribble(std::vector<std::byte>& buffer, uint32_t round);
  static bool is_scribble(const std::vector<std::byte>& buffer, uint32_t round);

  JobModel& job_;
  uint32_t rank_;
  uint32_t process_;  // of the rank's, from 0
  Rng rng_;
  std::vector<Tensor> tensors_;
  std::vector<uint32_t> order_;
  uint32_t step_ = 0;  // of an application that goes by steps
  size_t tensors_done_ = 0;
  uint64_t rounds_completed_ = 0;
  uint64_t operations_dropped_ = 0;
  bool went_on_ = false;
};

}  // namespace pbox::sim
