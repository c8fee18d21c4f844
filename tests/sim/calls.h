// A rank that calls collectives: one after another or several at a time, at a pace of its own. It
// drives worker/collective as libpbox's client does. It checks every result, and at the end that
// nothing has written to its buffers since.
#pragma once

#include <optional>
#include <vector>

#include "tests/sim/application.h"
#include "worker/collective/collectives.h"

namespace pbox::sim {

class Calls final : public Application {
 public:
  Calls(JobModel& job, uint32_t rank, uint64_t seed);

  uint64_t start_due(worker::Membership& membership, uint64_t now_ns,
                     uint64_t rack_now_ns) override;
  void completed(uint32_t slot, const worker::Exchange& exchange, uint64_t now_ns) override;
  // Fails: a job of collectives takes no new process in a lost one's place.
  void resume(const worker::Exchange& exchange, uint64_t now_ns) override;
  bool done() const override { return rounds_completed_ == calls_.size(); }
  int32_t priority(uint32_t /*slot*/) const override { return 0; }
  std::optional<uint64_t> operations_dropped() const override { return std::nullopt; }
  uint64_t rounds_completed() const override { return rounds_completed_; }
  uint64_t oldest_start_ns() const override;
  std::string waiting_for() const override;

 private:
  struct Call {
    // For calls in place: `output` is empty if the call writes into `input`. If the call reads from
    // `output`, `input` is a copy that it does not touch.
    std::vector<std::byte> input, output;
    std::vector<std::byte> expected_input, expected_output;  // after the call
    uint64_t started_ns = 0;
    bool is_pending = false;
    bool is_over = false;
  };

  void start(uint32_t number, uint64_t rack_now_ns);
  // Returns false in a job with a rogue member, which may push anything.
  bool is_checked() const { return job_.checks && !job_.options.rogue; }
  void check(uint32_t number) const;
  std::string where(uint32_t number) const;

  JobModel& job_;
  uint32_t rank_;
  Rng rng_;
  worker::Collectives collectives_;
  std::vector<Call> calls_;
  uint32_t next_ = 0;  // the next call to make
  uint32_t pending_ = 0;
  uint32_t pending_max_;
  uint64_t ready_ns_ = 0;  // when the next call may be made
  uint64_t rounds_completed_ = 0;
};

}  // namespace pbox::sim
