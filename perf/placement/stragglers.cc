#include "perf/placement/stragglers.h"

#include <algorithm>
#include <numeric>

#include "appliance/placement/rebalancer.h"
#include "base/limits.h"
#include "perf/models.h"

namespace pbox::perf {
namespace {

using placement::BoxIndex;

constexpr double kBoxBytesPerSecond = 5e9;
constexpr double kWorkers = 8;
constexpr double kNoise = 0.03;   // standard deviation of a box's time, as a share of its mean
constexpr size_t kBegins = 200;   // the iteration from which a link or CPU is shared
constexpr size_t kChanges = 250;  // iterations after which another box is slow

double full_speed(size_t, size_t) {
  return 1;
}
double shared_link(size_t box, size_t iteration) {
  return box == 1 && iteration >= kBegins ? 0.25 : 1;
}
double shared_processor(size_t box, size_t iteration) {
  return box == 2 && iteration >= kBegins ? 0.5 : 1;
}
double wandering(size_t box, size_t iteration) {
  return box == iteration / kChanges % kStragglerBoxes ? 0.3 : 1;
}

struct Chunks {
  std::vector<uint32_t> bytes;
  std::vector<uint32_t> tensor;
};

Chunks cut_vgg19() {
  Chunks chunks;
  uint32_t index = 0;
  for (const ModelTensor& tensor : tensors_of(vgg19_layers())) {
    for (uint64_t left = 4 * tensor.elements; left > 0; left -= chunks.bytes.back()) {
      const uint64_t bytes = std::min<uint64_t>(left, limits::kChunkBytesDefault);
      chunks.bytes.push_back(static_cast<uint32_t>(bytes));
      chunks.tensor.push_back(index);
    }
    ++index;
  }
  return chunks;
}

std::vector<placement::Box> declared_boxes() {
  std::vector<placement::Box> boxes;
  for (size_t box = 0; box < kStragglerBoxes; ++box) {
    boxes.push_back({.name = "box " + std::to_string(box), .bytes_per_second = kBoxBytesPerSecond});
  }
  return boxes;
}

std::vector<BoxIndex> first_map(const Chunks& chunks, const StragglerSetting& setting,
                                MapStrategy strategy) {
  const bool as_set = strategy == MapStrategy::kStatic || strategy == MapStrategy::kRebalanced;
  if (strategy != MapStrategy::kRoundRobin && !(as_set && setting.whole_tensors)) {
    std::vector<placement::BoxLoad> loads(kStragglerBoxes, {0, kBoxBytesPerSecond});
    std::vector<uint32_t> all(chunks.bytes.size());
    std::iota(all.begin(), all.end(), 0u);
    std::vector<BoxIndex> map(all.size());
    placement::place_largest_first(chunks.bytes, std::move(all), loads, map);
    return map;
  }
  std::vector<BoxIndex> map;
  for (size_t chunk = 0; chunk < chunks.bytes.size(); ++chunk) {
    const size_t turn = strategy == MapStrategy::kRoundRobin ? chunk : chunks.tensor[chunk];
    map.push_back(static_cast<BoxIndex>(turn % kStragglerBoxes));
  }
  return map;
}

// Returns a nearly normal number with mean 0 and standard deviation 1: the sum of twelve uniform
// numbers has variance 1.
double deviate(Rng& rng) {
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += rng.unit();
  return sum;
}

}  // namespace

std::vector<StragglerSetting> straggler_settings() {
  return {{"no straggler", full_speed, false},
          {"tensors dealt out whole", full_speed, true},
          {"one link at a quarter", shared_link, false},
          {"one CPU at a half", shared_processor, false},
          {"another box every 250", wandering, false}};
}

TrainingTime train(const StragglerSetting& setting, MapStrategy strategy, uint64_t seed) {
  const Chunks chunks = cut_vgg19();
  placement::Rebalancer rebalancer(chunks.bytes, first_map(chunks, setting, strategy),
                                   declared_boxes(), {.seed = seed});
  TrainingTime time;
  Rng rng(seed);
  std::vector<double> bytes =
      placement::bytes_by_box(chunks.bytes, rebalancer.box_of_chunk(), kStragglerBoxes);
  for (size_t iteration = 0; iteration < kStragglerIterations; ++iteration) {
    placement::Observation seen;
    std::vector<double> rates;
    for (size_t box = 0; box < kStragglerBoxes; ++box) {
      rates.push_back(kBoxBytesPerSecond * setting.speed(box, iteration));
      const double served = kWorkers * bytes[box];
      const double busy_seconds = served / rates[box] * (1 + kNoise * deviate(rng));
      seen.boxes.push_back({served, busy_seconds});
      seen.iteration_seconds = std::max(seen.iteration_seconds, busy_seconds);
    }
    time.seconds += seen.iteration_seconds;
    if (strategy != MapStrategy::kRebalanced) continue;
    const auto proposal = rebalancer.observe(seen);
    if (!proposal) continue;
    // The job waits until every box has sent and received all chunks that move.
    double stall_seconds = 0;
    const auto moved =
        placement::moved_bytes_by_box(chunks.bytes, proposal->moves, kStragglerBoxes);
    for (size_t box = 0; box < kStragglerBoxes; ++box) {
      stall_seconds = std::max(stall_seconds, moved[box] / rates[box]);
    }
    rebalancer.carried_out(stall_seconds);
    bytes = placement::bytes_by_box(chunks.bytes, rebalancer.box_of_chunk(), kStragglerBoxes);
    time.seconds += stall_seconds;
    time.stall_seconds += stall_seconds;
    ++time.proposals;
  }
  return time;
}

}  // namespace pbox::perf
