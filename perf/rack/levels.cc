// Ranks of several racks exchange the gradients of a model in two ways: through one box, and
// through a box in each rack that sends its sums to an upper box. All boxes have cables of the same
// rate. The scenario compares each time with the shortest that the cables allow. Every rank checks
// every sum.
#include <iomanip>
#include <stdexcept>

#include "perf/measure.h"
#include "perf/rack/systems.h"
#include "perf/scenario.h"

namespace pbox::perf {
namespace {

void add_options(po::options_description& options) {
  options.add_options()("racks", po::value<uint32_t>()->default_value(2), "racks")(
      "ranks", po::value<uint32_t>()->default_value(4), "worker machines of each rack")(
      "model", po::value<std::string>()->default_value("resnet50"), kModelHelp)(
      "worker-mbit", po::value<uint32_t>()->default_value(100),
      "rate of each worker's cable, in Mbit/s")(
      "box-mbit", po::value<uint32_t>()->default_value(400), "rate of each box's cable, in Mbit/s")(
      "turns", po::value<uint32_t>()->default_value(3),
      "timed exchanges through one box, and through two levels");
}

struct Shape {
  uint32_t racks = 0, ranks = 0;
  double worker_mbit = 0, box_mbit = 0;
  double model_bits = 0;

  double ms(double models, double mbit) const { return models * model_bits / (mbit * 1e3); }
  // Lower bounds on the time: the cable that takes longest sets it.
  double one_box_ms() const { return std::max(ms(1, worker_mbit), ms(racks * ranks, box_mbit)); }
  double two_levels_ms() const {
    return std::max({ms(1, worker_mbit), ms(ranks + 1, box_mbit), ms(racks, box_mbit)});
  }
};

Shape shape_of(const po::variables_map& options) {
  const auto model = model_by_name(options["model"].as<std::string>());
  if (!model) throw std::runtime_error(model.error().message);
  const Shape shape{options["racks"].as<uint32_t>(), options["ranks"].as<uint32_t>(),
                    double(options["worker-mbit"].as<uint32_t>()),
                    double(options["box-mbit"].as<uint32_t>()),
                    double(element_count(*model)) * sizeof(float) * 8};
  if (shape.racks == 0 || shape.ranks == 0 || shape.racks * shape.ranks > 64) {
    throw std::runtime_error("--racks times --ranks must be in [1, 64]");
  }
  return shape;
}

Link link(double megabits) {
  return {.bits_per_second = static_cast<uint64_t>(megabits * 1e6)};
}

nlohmann::json run(const po::variables_map& options, std::ostream& report) {
  const Shape shape = shape_of(options);
  Rack rack({.worker_count = shape.racks * shape.ranks,
             .box_count = 1 + shape.racks,
             .worker_link = link(shape.worker_mbit),
             .box_link = link(shape.box_mbit)});
  // The one box, and the upper one.
  std::vector<RackBox> boxes;
  boxes.push_back(rack.start_box(0, {}));
  std::string racks_boxes;
  for (uint32_t index = 0; index < shape.racks; ++index) {
    boxes.push_back(rack.start_box(
        1 + index,
        {"--upstream.box=" + boxes[0].control, "--upstream.rank=" + std::to_string(index),
         "--upstream.world_size=" + std::to_string(shape.racks)}));
    racks_boxes += (index == 0 ? "" : ",") + boxes.back().control;
  }
  std::vector<const Program*> programs;
  for (const RackBox& box : boxes) programs.push_back(box.program.get());

  PeerOptions peer{.model = options["model"].as<std::string>(),
                   .worker_count = shape.racks * shape.ranks,
                   .hosts = worker_hosts(rack)};
  nlohmann::json figures = {{"model", peer.model},
                            {"racks", shape.racks},
                            {"ranks", shape.ranks},
                            {"worker_mbit", shape.worker_mbit},
                            {"box_mbit", shape.box_mbit}};
  const auto turns = std::max(1u, options["turns"].as<uint32_t>());
  // The two ways run one after the other, because both use a job of the same name at boxes[0].
  const auto measure = [&](const std::string& way, const std::string& box, double limit_ms) {
    peer.box = box;
    System system = start_system(rack, "pbox", peer);
    for (uint32_t turn = 0; turn < turns; ++turn) {
      measure_once(system, programs);
      report << "\r  " << way << " " << turn + 1 << "/" << turns << std::flush;
    }
    system.program->finish();
    figures["ways"][way] = figures_of(system, limit_ms);
    report << "\r  " << std::left << std::setw(12) << way << std::right << std::fixed
           << std::setprecision(1) << std::setw(10) << median(system.ms) << " ms"
           << std::setprecision(3) << std::setw(8) << median(system.ms) / limit_ms
           << " times the shortest time that the cables allow\n";
    return system.ms;
  };
  const auto one = measure("one box", boxes[0].control, shape.one_box_ms());
  const auto two = measure("two levels", racks_boxes, shape.two_levels_ms());
  figures["speedup"] = median_ratio(one, two);
  figures["speedup_possible"] = shape.one_box_ms() / shape.two_levels_ms();
  report << "  speedup of two levels: " << std::setprecision(2) << figures["speedup"].get<double>()
         << " (the cables allow " << figures["speedup_possible"].get<double>() << ")\n";
  return figures;
}

const ScenarioRegistration kRegistration({.name = "levels",
                                          .summary = "one box for several racks, compared with a "
                                                     "box in each rack and an upper box",
                                          .add_options = add_options,
                                          .run = run});

}  // namespace
}  // namespace pbox::perf
