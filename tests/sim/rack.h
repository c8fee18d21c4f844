// What all parts of a simulated rack share: time, the network, the seed's options, and of each job
// what its results must be.
#pragma once

#include <vector>

#include "tests/sim/control_link.h"
#include "tests/sim/network.h"
#include "tests/sim/oracle.h"

namespace pbox::sim {

// A job, seen from outside: where its chunks lie, and what they must become.
struct JobModel {
  struct Chunk {
    uint32_t tensor = 0;
    uint32_t first_element = 0;
    uint32_t elements = 0;
  };

  JobModel(uint64_t seed, uint32_t index, const JobOptions& options, HostId first_host);
  JobModel(const JobModel&) = delete;  // its parts refer to each other
  JobModel& operator=(const JobModel&) = delete;

  // What a chunk's result must be, and where its elements begin in it.
  const std::byte* expected(const Chunk& chunk, uint32_t round);
  uint32_t element_bytes() const { return wire::dtype_bytes(options.dtype); }
  // A member that may push anything makes sums that mean nothing.
  bool has_known_sums() const { return !options.rogue; }

  uint32_t index;
  const JobOptions& options;
  HostId first_host;  // of rank 0; rank r has first_host + r
  std::string name;
  Gradients gradients;
  Oracle oracle;
  std::vector<Chunk> chunks;  // by id
};

struct Rack {
  EventQueue& queue;
  Network& network;
  ControlNetwork& control;
  const Options& options;
  FaultCounts& counts;
  std::vector<std::unique_ptr<JobModel>>& jobs;
};

}  // namespace pbox::sim
