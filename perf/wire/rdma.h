// `wire --port rdma`: the gradients that a box's pipeline adds and answers over reliable
// connections, compared with the bandwidth of perftest over as many connections between the same
// devices.
#pragma once

#include <nlohmann/json.hpp>
#include <ostream>
#include <string>

#include "perf/wire/job.h"

namespace pbox::perf {

struct RdmaRun {
  std::string box_device;   // "": the first device
  std::string load_device;  // "": the same as box_device
  uint32_t workers = 4;
  uint32_t turns = 5;
  double seconds = 0.5;  // duration of each part of a turn
};

// Throws std::runtime_error if a device or perftest is missing.
nlohmann::json measure_rdma(const RdmaRun& run, std::ostream& report);

}  // namespace pbox::perf
