// The process that uses a rank's membership: training, which exchanges tensors round by round, or
// calls of collectives. It has a pace of its own, checks every result, and checks that nothing else
// writes to its buffers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/rng.h"
#include "tests/sim/rack.h"
#include "worker/membership/membership.h"

namespace pbox::sim {

class Application {
 public:
  virtual ~Application() = default;

  // Starts all operations that are due. Returns the time of the next one on now_ns's clock;
  // UINT64_MAX if none is due before an operation completes.
  virtual uint64_t start_due(worker::Membership& membership, uint64_t now_ns,
                             uint64_t rack_now_ns) = 0;
  virtual void completed(uint32_t tensor, const worker::Exchange& exchange, uint64_t now_ns) = 0;
  // Called for a new process in a job that has begun. Sets the round in which each tensor
  // continues.
  virtual void resume(const worker::Exchange& exchange, uint64_t now_ns) = 0;

  // Returns true once this rank's rounds are done, and those of all ranks that need this one to
  // continue.
  virtual bool done() const = 0;
  // Returns the priority that the tensor's last operation was started with.
  virtual int32_t priority(uint32_t tensor) const = 0;
  // Returns the number of operations of which the box dropped a part; nothing if that is not known.
  virtual std::optional<uint64_t> operations_dropped() const = 0;
  virtual uint64_t rounds_completed() const = 0;
  // Returns when the oldest incomplete operation was started, in rack time; UINT64_MAX if there is
  // none.
  virtual uint64_t oldest_start_ns() const = 0;
  virtual std::string waiting_for() const = 0;
};

std::unique_ptr<Application> make_application(JobModel& job, uint32_t rank, uint64_t seed);

// Draws the pause of a rank before its operation of this round.
uint64_t think_ns(const JobOptions& job, uint32_t rank, uint32_t round, Rng& rng);

}  // namespace pbox::sim
