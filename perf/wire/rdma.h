// `wire --port rdma`: what a box's pipeline absorbs and answers over reliable connections, against
// what perftest moves over as many of the same devices.
#pragma once

#include <nlohmann/json.hpp>
#include <ostream>
#include <string>

#include "perf/wire/job.h"

namespace pbox::perf {

struct RdmaRun {
  std::string box_device;   // "" for the first there is
  std::string load_device;  // "" for the box's
  uint32_t workers = 4;
  uint32_t turns = 5;
  double seconds = 0.5;  // duration of each part of a turn
};

// Throws std::runtime_error where there is no such device, or no perftest.
nlohmann::json measure_rdma(const RdmaRun& run, std::ostream& report);

}  // namespace pbox::perf
