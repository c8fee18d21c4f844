#include "tests/sim/goodput.h"

#include "tests/sim/world.h"

namespace pbox::sim {
namespace {

constexpr uint32_t kWindow = 1u << 20, kSmallWindow = 256u << 10;

// The product's window is the larger one. With it a repair waits longer behind the packets that the
// worker has sent before, so the required ratio is lower.
constexpr struct {
  double loss;
  uint32_t window_bytes;
  double least;
} kTargets[] = {{0, kWindow, 1},   {0.0001, kWindow, 0.94},      {0.001, kWindow, 0.75},
                {0.3, kWindow, 0}, {0.0001, kSmallWindow, 0.95}, {0.001, kSmallWindow, 0.8}};

// Returns a rack with one job: four workers with a link of 10 Gbit/s each, a model of four tensors,
// and packets of Ethernet's size.
Options job_on(double loss, uint32_t window_bytes, uint64_t seed) {
  Options options;
  options.seed = seed;
  options.pipelines = 2;
  options.ring_bytes = 4u << 20;
  options.link_bytes_per_us = 1250;
  options.box_links = 4;
  options.faults.drop = loss;
  // The faults never end.
  options.faults_end_ns = UINT64_MAX / 4;
  JobOptions job;
  job.workers = 4;
  job.rounds = 3;
  job.chunk_bytes = limits::kChunkBytesDefault;
  job.window_bytes = window_bytes;
  for (uint32_t index = 0; index < 4; ++index) {
    job.tensors.push_back({.elements = loss < 0.1 ? 1u << 20 : 1u << 16});
  }
  options.jobs.push_back(job);
  return options;
}

// Times are summed over this many seeds, because chance decides whether a packet is lost at the
// end, where it costs most.
constexpr uint64_t kSeeds = 4;

}  // namespace

std::vector<Goodput> measure_goodput() {
  std::vector<Goodput> measured;
  for (const auto& target : kTargets) {
    Goodput goodput{
        .loss = target.loss, .window_bytes = target.window_bytes, .least = target.least};
    double without_ms = 0;
    for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
      const Options options = job_on(target.loss, target.window_bytes, seed);
      Options lossless = options;
      lossless.faults.drop = 0;
      without_ms += static_cast<double>(World(lossless).run().work_ns) / 1e6;
      const Outcome outcome = World(options).run();
      goodput.milliseconds += static_cast<double>(outcome.work_ns) / 1e6;
      goodput.violation += outcome.violation;
    }
    goodput.ratio = without_ms / goodput.milliseconds;
    measured.push_back(goodput);
  }
  return measured;
}

}  // namespace pbox::sim
