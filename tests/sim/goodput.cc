#include "tests/sim/goodput.h"

#include "tests/sim/world.h"

namespace pbox::sim {
namespace {

constexpr struct {
  double loss;
  double least;
} kTargets[] = {{0, 1}, {0.0001, 0.95}, {0.001, 0.8}, {0.3, 0}};

// Four workers on 10 Gbit/s each, a model in four tensors, Ethernet's packets.
Options job_on(double loss) {
  Options options;
  options.pipelines = 2;
  options.ring_bytes = 4u << 20;
  options.link_bytes_per_us = 1250;
  options.box_links = 4;
  options.faults.drop = loss;
  // The faults do not end.
  options.faults_end_ns = UINT64_MAX / 4;
  JobOptions job;
  job.workers = 4;
  job.rounds = 3;
  job.chunk_bytes = limits::kChunkBytesDefault;
  for (uint32_t index = 0; index < 4; ++index) {
    job.tensors.push_back({.elements = loss < 0.1 ? 1u << 20 : 1u << 16});
  }
  options.jobs.push_back(job);
  return options;
}

}  // namespace

std::vector<Goodput> measure_goodput() {
  std::vector<Goodput> measured;
  for (const auto& target : kTargets) {
    // Heavy loss is measured with less, against as much without.
    const auto none = World(job_on(0)).run();
    Options options = job_on(target.loss);
    const auto reference = target.loss < 0.1 ? none : [] {
      Options small = job_on(0.3);
      small.faults.drop = 0;
      return World(small).run();
    }();
    const Outcome outcome = World(options).run();
    measured.push_back(
        {.loss = target.loss,
         .ratio = static_cast<double>(reference.work_ns) / static_cast<double>(outcome.work_ns),
         .least = target.least,
         .milliseconds = static_cast<double>(outcome.work_ns) / 1e6,
         .violation = outcome.violation});
  }
  return measured;
}

}  // namespace pbox::sim
