// The objects that all parts of a simulated rack share.
#pragma once

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "tests/sim/control_link.h"
#include "tests/sim/job_model.h"
#include "tests/sim/meter.h"
#include "tests/sim/sim_cluster.h"
#include "tests/sim/sim_keys.h"
#include "tests/sim/sim_snapshots.h"

namespace pbox::sim {

struct Rack {
  EventQueue& queue;
  Network& network;
  ControlNetwork& control;
  const Options& options;
  FaultCounts& counts;
  std::vector<std::unique_ptr<JobModel>>& jobs;
  SimCluster& cluster;
  SimKeys& keys;
  Meter& meter;
  SnapshotFolder* snapshots;  // null if the boxes keep none
  std::ostream* trace;        // null if there is no trace
  bool checks;                // false in a run that only computes a trace hash

  // `text` is a function that returns a description of the event.
  template <typename Text>
  void say(const std::string& who, const Text& text) const {
    if (trace == nullptr) return;
    *trace << static_cast<double>(queue.now_ns() - EventQueue::kBeginNs) / 1e6 << " ms " << who
           << ": " << text() << "\n";
  }
};

}  // namespace pbox::sim
