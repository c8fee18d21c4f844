// Ranks of several racks exchange the gradients of a model in two ways: through one box, and
// through a box in each rack that sends its sums to an upper box. All boxes have cables of the same
// rate. The scenario compares each time with the shortest that the cables allow, for each number of
// racks. Every rank checks every sum.
//
// With --on-hosts a "rack" is one host: its ranks share the host's cable, and in the second way
// they exchange with a box on their host by shared memory.
#include <array>
#include <iomanip>
#include <sstream>
#include <stdexcept>

#include "perf/lists.h"
#include "perf/measure.h"
#include "perf/rack/systems.h"
#include "perf/scenario.h"

namespace pbox::perf::rack_levels {
namespace {

constexpr uint32_t kRanksMax = 64;  // all racks together
constexpr int kAnswerMs = 10'000;

void add_options(po::options_description& options) {
  options.add_options()("racks", po::value<std::string>()->default_value("2,3,4"),
                        "numbers of racks, separated by commas")(
      "ranks", po::value<uint32_t>()->default_value(4), "worker machines of each rack")(
      "model", po::value<std::string>()->default_value("resnet50"), kModelHelp)(
      "worker-mbit", po::value<uint32_t>()->default_value(50),
      "rate of each worker's cable, in Mbit/s")(
      "box-mbit", po::value<uint32_t>()->default_value(200), "rate of each box's cable, in Mbit/s")(
      "turns", po::value<uint32_t>()->default_value(3),
      "number of timed exchanges through one box and through two levels")(
      "no-one-box", "do not measure one box for all racks")(
      "on-hosts",
      "the ranks of each rack are on one host, which has one cable of --worker-mbit and, with two "
      "levels, the rack's box");
}

struct Shape {
  uint32_t racks = 0, ranks = 0;
  double worker_mbit = 0, box_mbit = 0;
  double model_bits = 0;
  bool on_hosts = false;

  double ms(double models, double mbit) const { return models * model_bits / (mbit * 1e3); }
  // Lower bounds on the time: the cable that takes longest sets it.
  double one_box_ms() const {
    return std::max(ms(on_hosts ? ranks : 1, worker_mbit), ms(racks * ranks, box_mbit));
  }
  double two_levels_ms() const {
    if (on_hosts) return std::max(ms(1, worker_mbit), ms(racks, box_mbit));
    return std::max({ms(1, worker_mbit), ms(ranks + 1, box_mbit), ms(racks, box_mbit)});
  }
};

Shape shape_of(const po::variables_map& options, uint32_t racks) {
  const auto model = model_by_name(options["model"].as<std::string>());
  if (!model) throw std::runtime_error(model.error().message);
  const Shape shape{racks,
                    options["ranks"].as<uint32_t>(),
                    double(options["worker-mbit"].as<uint32_t>()),
                    double(options["box-mbit"].as<uint32_t>()),
                    double(element_count(*model)) * sizeof(float) * 8,
                    options.count("on-hosts") > 0};
  if (shape.ranks == 0 || shape.racks * shape.ranks > kRanksMax) {
    throw std::runtime_error("--racks " + std::to_string(racks) + " times --ranks " +
                             std::to_string(shape.ranks) + " must be in [1, " +
                             std::to_string(kRanksMax) + "]");
  }
  return shape;
}

Link link(double megabits) {
  return {.bits_per_second = static_cast<uint64_t>(megabits * 1e6)};
}

// Bytes that have left and reached the host by its cable.
uint64_t bytes_of_cable(const Rack& rack, const Host& host) {
  const auto program = rack.run(host, {"cat", "/proc/net/dev"});
  for (;;) {
    std::istringstream line(program->read_line(kAnswerMs));
    std::string name;
    line >> name;
    if (name != "eth0:") continue;
    std::array<uint64_t, 9> fields{};  // received bytes come first, sent bytes last
    for (uint64_t& field : fields) line >> field;
    program->finish();
    return fields.front() + fields.back();
  }
}

// Measures one number of racks.
class Racks {
 public:
  Racks(const po::variables_map& options, uint32_t racks)
      : shape_(shape_of(options, racks)),
        turns_(std::max(1u, options["turns"].as<uint32_t>())),
        rack_({.worker_count = shape_.on_hosts ? racks : racks * shape_.ranks,
               .box_count = shape_.on_hosts ? 1 : 1 + racks,
               .worker_link = link(shape_.worker_mbit),
               .box_link = link(shape_.box_mbit)}),
        peer_{.model = options["model"].as<std::string>(),
              .worker_count = racks * shape_.ranks,
              .hosts = worker_hosts(rack_, shape_.on_hosts ? shape_.ranks : 1)} {
    boxes_.push_back(rack_.start_box(0, {}));  // the one box, and the upper one
    for (uint32_t index = 0; index < racks; ++index) {
      boxes_.push_back(rack_.start_box(
          shape_.on_hosts ? rack_.worker(index) : rack_.box(1 + index),
          {"--upstream.box=" + boxes_[0].control, "--upstream.rank=" + std::to_string(index),
           "--upstream.world_size=" + std::to_string(racks)}));
      boxes_of_racks_ += (index == 0 ? "" : ",") + boxes_.back().control;
    }
  }

  // The two ways run one after the other, because both use a job of the same name at boxes_[0].
  nlohmann::json measure(bool with_one_box, std::ostream& report) {
    nlohmann::json figures = {{"racks", shape_.racks}};
    std::vector<double> one;
    if (with_one_box) {
      one = run("one box", boxes_[0].control, shape_.one_box_ms(), figures, report);
    }
    const auto two = run("two levels", boxes_of_racks_, shape_.two_levels_ms(), figures, report);
    if (!with_one_box) return figures;
    figures["speedup"] = median_ratio(one, two);
    figures["speedup_possible"] = shape_.one_box_ms() / shape_.two_levels_ms();
    report << "           speedup " << std::setprecision(2) << figures["speedup"].get<double>()
           << "; the cables allow " << figures["speedup_possible"].get<double>() << "\n";
    return figures;
  }

 private:
  std::vector<double> run(const std::string& way, const std::string& box, double limit_ms,
                          nlohmann::json& figures, std::ostream& report) {
    std::vector<const Program*> programs;
    for (const RackBox& one : boxes_) programs.push_back(one.program.get());
    peer_.box = box;
    if (shape_.on_hosts) peer_.port = box == boxes_[0].control ? "socket" : "shm";
    System system = start_system(rack_, "pbox", peer_);
    const uint64_t bytes_before = bytes_of_cable(rack_, rack_.worker(0));
    for (uint32_t turn = 0; turn < turns_; ++turn) {
      measure_once(system, programs);
      report << "\r  " << way << " " << turn + 1 << "/" << turns_ << std::flush;
    }
    const double bytes =
        static_cast<double>(bytes_of_cable(rack_, rack_.worker(0)) - bytes_before) / turns_;
    system.program->finish();
    const double share = limit_ms / median(system.ms);
    figures["ways"][way] = figures_of(system, limit_ms);
    figures["ways"][way]["share_of_cables"] = share;
    figures["ways"][way]["cable_models"] = bytes * 8 / shape_.model_bits;
    report << "\r  " << shape_.racks << " racks  " << std::left << std::setw(12) << way
           << std::right << std::fixed << std::setprecision(1) << std::setw(10) << median(system.ms)
           << " ms" << std::setprecision(3) << std::setw(8) << share
           << " of what the cables allow; a worker's cable carried " << std::setprecision(2)
           << figures["ways"][way]["cable_models"].get<double>() << " models\n";
    return system.ms;
  }

  const Shape shape_;
  const uint32_t turns_;
  Rack rack_;
  PeerOptions peer_;
  std::vector<RackBox> boxes_;
  std::string boxes_of_racks_;
};

nlohmann::json run(const po::variables_map& options, std::ostream& report) {
  const std::vector<uint32_t> counts =
      numbers_of("--racks", options["racks"].as<std::string>(), 1, kRanksMax);
  nlohmann::json figures = {{"model", options["model"].as<std::string>()},
                            {"ranks", options["ranks"].as<uint32_t>()},
                            {"worker_mbit", options["worker-mbit"].as<uint32_t>()},
                            {"box_mbit", options["box-mbit"].as<uint32_t>()},
                            {"by_racks", nlohmann::json::array()}};
  for (const uint32_t racks : counts) {
    Racks measured(options, racks);
    figures["by_racks"].push_back(measured.measure(options.count("no-one-box") == 0, report));
  }
  return figures;
}

const ScenarioRegistration kRegistration({.name = "levels",
                                          .summary = "one box for several racks, compared with a "
                                                     "box in each rack and an upper box",
                                          .add_options = add_options,
                                          .run = run});

}  // namespace
}  // namespace pbox::perf::rack_levels
