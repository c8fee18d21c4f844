// What all parts of a simulated rack share.
#pragma once

#include <memory>
#include <vector>

#include "tests/sim/control_link.h"
#include "tests/sim/job_model.h"

namespace pbox::sim {

struct Rack {
  EventQueue& queue;
  Network& network;
  ControlNetwork& control;
  const Options& options;
  FaultCounts& counts;
  std::vector<std::unique_ptr<JobModel>>& jobs;
};

}  // namespace pbox::sim
