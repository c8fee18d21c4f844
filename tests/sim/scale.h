// Measures what many boxes, ranks and chunks cost the control plane: in one rack jobs begin, a box
// is drained, and another box is lost.
#pragma once

#include <cstdint>
#include <string>

namespace pbox::sim {

struct ScaleSize {
  uint32_t boxes = 4;
  uint32_t jobs = 1;
  uint32_t ranks = 8;     // in each job, at most limits::kWorkersPerJobMax
  uint32_t chunks = 256;  // in each job, at least one for each part
};

inline constexpr uint32_t kScalePipelines = 4;  // in each box

struct ScaleStep {
  double simulated_s = 0;  // on the rack's clock
  double control_s = 0;    // CPU time of the control threads of all boxes together
  uint64_t messages = 0;   // on control connections
};

struct Scale {
  uint32_t parts = 0;  // in each job
  ScaleStep plan;      // from the start of the first rank until all jobs have part maps
  ScaleStep join;      // from then until every rank runs in every part of its job
  ScaleStep drain;     // from an operator's request until the box is empty and every rank runs
  ScaleStep
      failover;  // from the loss of another box until its parts have moved and every rank runs
  // Control connections of the box that has most of them, once every rank runs.
  uint64_t connections = 0;
  std::string violation = {};  // empty if all steps ended
};

Scale measure_scale(const ScaleSize& size);

}  // namespace pbox::sim
