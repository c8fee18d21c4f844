// A process between workers and a box that imitates a NIC whose queues are chosen by a hash. It
// drops packets that hash to a queue other than their pipeline's. It relays the pboxd's control
// messages, and changes SESSION so that it tells the workers how packets find the queues. Works
// over IPv4 loopback only.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "nic/port.h"
#include "tests/support/worker_process.h"

namespace pbox::test {

struct SteeringOptions {
  std::string box;  // the pboxd's control HOST:PORT
  // The affinity in SESSION, with the table if it is kRssHash. Unknown values are passed on
  // unchanged.
  nic::QueueAffinity affinity = nic::QueueAffinity::kSourceTrial;
  uint32_t lose_every = 0;  // one in this many packets to the box is lost at random; 0 for none
  int deaf_pipeline = -1;   // a pipeline that receives nothing; -1 if there is none
};

// Counts of packets towards the box.
struct SteeringCounts {
  std::atomic<uint64_t> pushes_passed{0};
  std::atomic<uint64_t> pushes_misdirected{0};
  std::atomic<uint64_t> others_misdirected{0};
};

class SteeringNic {
 public:
  // Starts the NIC as a process of its own, which ends with this object.
  explicit SteeringNic(const SteeringOptions& options);

  // Returns the HOST:PORT that workers use as the box's.
  const std::string& control() const { return control_; }
  const SteeringCounts& counts() const { return *counts_; }

 private:
  std::shared_ptr<SteeringCounts> counts_;  // shared with the child process
  WorkerProcess process_;
  std::string control_;
};

}  // namespace pbox::test
