// The training process's use of its tensors: rounds one after another, in an order and at a pace of
// its own. It checks every result, and that nobody touches its buffers between operations.
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

  // Starts all operations that are due. Returns the time of the next one on now_ns's clock;
  // UINT64_MAX if none is due before an operation completes.
  uint64_t start_due(worker::Membership& membership, uint64_t now_ns, uint64_t rack_now_ns);
  void completed(uint32_t tensor, uint64_t now_ns);
  // For a new process in a job that has begun: sets the round in which each tensor continues.
  void resume(const worker::Exchange& exchange, uint64_t now_ns);

  // True once this rank's rounds are done, and those of the ranks that need it to continue.
  bool done() const;
  // Number of operations of which the box dropped some part; nothing once they are no longer
  // counted.
  std::optional<uint64_t> operations_dropped() const;
  uint64_t rounds_completed() const { return rounds_completed_; }
  // Start of the oldest incomplete operation, in rack time; UINT64_MAX if there is none.
  uint64_t oldest_start_ns() const;
  std::string waiting_for() const;

 private:
  struct Tensor {
    uint32_t round = 0;  // the next round to start, or the round in flight
    bool busy = false;
    bool fetches = false;  // the previous round's weights must be fetched first
    uint64_t ready_ns = 0;
    uint64_t started_ns = 0;
    uint32_t input_crc = 0;
    std::vector<std::byte> input, output;
  };

  bool may_start(const Tensor& tensor) const;
  // This rank's rounds are done, but it continues because other ranks need a quorum.
  bool goes_on() const;
  void fill(uint32_t index, std::vector<std::byte>& input);
  uint64_t think_ns(uint32_t round);
  void start(worker::Membership& membership, uint32_t index, uint64_t rack_now_ns);
  void check_result(uint32_t index);
  static void scribble(std::vector<std::byte>& buffer, uint32_t round);
  static bool is_scribble(const std::vector<std::byte>& buffer, uint32_t round);

  JobModel& job_;
  uint32_t rank_;
  uint32_t process_;  // number of this process among the rank's processes, from 0
  Rng rng_;
  std::vector<Tensor> tensors_;
  std::vector<uint32_t> order_;
  uint32_t step_ = 0;  // current step, if the application goes by steps
  size_t tensors_done_ = 0;
  uint64_t rounds_completed_ = 0;
  uint64_t operations_dropped_ = 0;
  bool went_on_ = false;
};

}  // namespace pbox::sim
