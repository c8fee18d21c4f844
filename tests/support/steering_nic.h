// What stands between workers and a box whose NIC queues are chosen by a hash: a packet that hashes
// to another queue than its pipeline's is dropped. It speaks for a pboxd that has no such NIC, and
// tells the workers in the pboxd's place how their packets find the queues. Over loopback, IPv4.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "nic/port.h"
#include "tests/support/worker_process.h"

namespace pbox::test {

struct SteeringOptions {
  std::string box;  // control HOST:PORT of the pboxd
  // What SESSION says; the table too where it is kRssHash. Unknown values are said as they are.
  nic::QueueAffinity affinity = nic::QueueAffinity::kSourceTrial;
  uint32_t lose_every = 0;  // towards the box, one packet in so many, by chance; 0: none
  int deaf_pipeline = -1;   // hears nothing
};

// Of packets towards the box.
struct SteeringCounts {
  std::atomic<uint64_t> pushes_passed{0};
  std::atomic<uint64_t> pushes_misdirected{0};
  std::atomic<uint64_t> others_misdirected{0};
};

class SteeringNic {
 public:
  // Starts a process of its own, which ends with this object.
  explicit SteeringNic(const SteeringOptions& options);

  // HOST:PORT that workers take for the box's.
  const std::string& control() const { return control_; }
  const SteeringCounts& counts() const { return *counts_; }

 private:
  std::shared_ptr<SteeringCounts> counts_;  // shared with the process
  WorkerProcess process_;
  std::string control_;
};

}  // namespace pbox::test
