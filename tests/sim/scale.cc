#include "tests/sim/scale.h"

#include <algorithm>

#include "base/clock.h"
#include "tests/sim/world.h"

namespace pbox::sim {
namespace {

constexpr uint64_t kObserveNs = kNanosPerMilli;
constexpr uint64_t kStepMostNs = 120 * kNanosPerSecond;
constexpr uint32_t kChunkBytes = limits::kChunkBytesMin;
constexpr HostId kDrained = 1, kLost = 2;

// Returns the number of parts into which cluster::make_part_map divides a job.
uint32_t parts_of(const ScaleSize& size) {
  const uint32_t pipelines = size.boxes * kScalePipelines;
  return std::min({pipelines * cluster::kPartsPerPipeline, size.chunks, limits::kPartsPerJobMax});
}

// The ranks rarely exchange anything, because only the control plane is measured.
Options options_of(const ScaleSize& size) {
  Options options;
  options.boxes = size.boxes;
  options.pipelines = kScalePipelines;
  options.has_cluster = options.asks_once = true;
  options.ring_bytes = 256u << 20;
  options.memory_bytes = options.arena_bytes = uint64_t{1} << 36;
  options.job_slots = size.jobs;
  options.events_max = UINT64_MAX;
  const uint32_t parts = parts_of(size);
  for (uint32_t part = 0; part < parts; ++part) {
    for (uint32_t number = 0; number < size.jobs; ++number) {
      JobOptions job;
      job.number = number;
      job.part = part;
      job.parts = parts;
      job.workers = size.ranks;
      job.rounds = UINT32_MAX;
      job.chunk_bytes = kChunkBytes;
      job.think_max_ns = 20 * kNanosPerSecond;
      job.may_move = true;
      job.arrivals_ns.assign(size.ranks, 0);  // all parts of a rank begin together
      job.tensors.push_back({.elements = size.chunks / parts * kChunkBytes / 4});
      options.jobs.push_back(job);
    }
  }
  return options;
}

class Course {
 public:
  Course(World& world, const ScaleSize& size, Scale& scale)
      : world_(world), size_(size), scale_(scale) {
    begin_step();
  }

  // Begins the next step if the current one has ended. Returns false at the end of the last step.
  bool go_on() {
    if (world_.queue().now_ns() - begin_ns_ > kStepMostNs) {
      scale_.violation = "step " + std::to_string(step_) + " did not end within 120 s";
      return false;
    }
    switch (step_) {
      case 0:
        if (world_.cluster().map_count() == size_.jobs) end_step(scale_.plan);
        return true;
      case 1:
        if (!all_run()) return true;
        end_step(scale_.join);
        note_connections();
        drain();
        return true;
      case 2:
        if (!has_moved(kDrained)) return true;
        end_step(scale_.drain);
        world_.box(kLost).crash(true);
        return true;
      default:
        if (!has_moved(kLost)) return true;
        end_step(scale_.failover);
        return false;
    }
  }

 private:
  void begin_step() {
    begin_ns_ = world_.queue().now_ns();
    control_ns_ = world_.meter().ns();
    messages_ = world_.control().message_count();
  }

  void end_step(ScaleStep& step) {
    step.simulated_s = static_cast<double>(world_.queue().now_ns() - begin_ns_) / 1e9;
    step.control_s = static_cast<double>(world_.meter().ns() - control_ns_) / 1e9;
    step.messages = world_.control().message_count() - messages_;
    ++step_;
    begin_step();
  }

  bool all_run() {
    const auto& workers = world_.workers();
    return std::all_of(workers.begin(), workers.end(),
                       [](const auto& worker) { return worker->runs(); });
  }

  void drain() {
    world_.leaders_cluster()->maps().set_duty(name_of_box(kDrained), cluster::Duty::kDrains,
                                              [](const Status&) {});
  }

  void note_connections() {
    for (HostId box = 0; box < size_.boxes; ++box) {
      scale_.connections = std::max<uint64_t>(scale_.connections, world_.control().open_count(box));
    }
  }

  bool has_moved(HostId box) {
    BoxCluster* leader = world_.leaders_cluster();
    return leader != nullptr && leader->maps().parts_of(name_of_box(box)) == 0 && all_run();
  }

  World& world_;
  const ScaleSize& size_;
  Scale& scale_;
  uint32_t step_ = 0;
  uint64_t begin_ns_ = 0, control_ns_ = 0, messages_ = 0;
};

}  // namespace

Scale measure_scale(const ScaleSize& size) {
  Scale scale;
  scale.parts = parts_of(size);
  constexpr bool kChecks = false;
  World world(options_of(size), nullptr, kChecks);
  world.meter().turn_on();
  std::optional<Course> course;
  world.observe(kObserveNs, [&] {
    if (!course) course.emplace(world, size, scale);
    return course->go_on();
  });
  const Outcome outcome = world.run();
  scale.violation += outcome.violation;
  return scale;
}

}  // namespace pbox::sim
