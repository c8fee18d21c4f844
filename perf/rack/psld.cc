// Measures the rebalancer on a shaped rack of several boxes. A job whose parts can move is compared
// with the same job whose parts stay, under the stragglers that PSLD's abstract names. The fixed
// job is measured with four assignments of its parts: the setting's own, round robin, by bytes, and
// the best one. An oracle finds the best one: it tries each number of parts for the slow box, from
// none up to an equal share.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <iomanip>
#include <map>
#include <stdexcept>
#include <thread>

#include "appliance/cluster/part_map.h"
#include "perf/measure.h"
#include "perf/rack/cluster.h"
#include "perf/rack/job.h"
#include "perf/rack/psld_inside.h"
#include "perf/scenario.h"

namespace pbox::perf::rack_psld {
namespace {

// Window of a worker per part. It is small because control connections share the cables. They must
// not wait behind the data that many parts queue at a slow cable.
constexpr uint32_t kWindowBytes = 32 << 10;
// The number of parts of a box with two pipelines. These boxes have one pipeline, because the
// machine has few cores.
constexpr uint32_t kPartsPerBox = 2 * cluster::kPartsPerPipeline;

struct Settings {
  std::string model, only;
  uint32_t workers, boxes, scale, still_iterations, moving_iterations, slow_by, change_s, turns;
  uint32_t setting_turns, search_iterations;
  double megabits, compute_ms;
  uint64_t model_bytes = 0;
};

// The box that is slow in the settings with one slow box.
constexpr uint32_t kSlowBox = 1;
// A hogged box is stopped and continued in steps of this length.
constexpr std::chrono::milliseconds kHogTurn{20};

// Disturbs boxes during its lifetime: a thread calls `begin` at once and then once every `every`.
// The destructor calls `end`, which undoes the disturbance.
class Disturbance {
 public:
  Disturbance(std::function<void(uint64_t step)> begin, std::chrono::milliseconds every,
              std::function<void()> end)
      : end_(std::move(end)), thread_([this, begin = std::move(begin), every] {
          for (uint64_t step = 0; !is_over_; ++step) {
            begin(step);
            const auto next = std::chrono::steady_clock::now() + every;
            while (!is_over_ && std::chrono::steady_clock::now() < next) {
              std::this_thread::sleep_for(std::min(every, std::chrono::milliseconds(20)));
            }
          }
        }) {}
  ~Disturbance() {
    is_over_ = true;
    thread_.join();
    end_();
  }
  Disturbance(const Disturbance&) = delete;
  Disturbance& operator=(const Disturbance&) = delete;

 private:
  std::function<void()> end_;
  std::atomic<bool> is_over_ = false;
  std::thread thread_;
};

enum class Straggler { kNone, kAssignment, kLink, kProcessor, kChanging };
struct Setting {
  const char* name;
  Straggler straggler;
  const char* means;
};
constexpr Setting kSettings[] = {
    {"none", Straggler::kNone, "no straggler"},
    {"imbalanced_assignment", Straggler::kAssignment,
     "each box has one part, except one box, which has all others"},
    {"bandwidth_contention", Straggler::kLink, "one box's cable is slow from the start"},
    {"cpu_hog", Straggler::kProcessor, "one box's process gets little of its core"},
    {"changing", Straggler::kChanging,
     "like cpu_hog, but another box is slow after every --change-s seconds"},
};

// Two clusters of boxes. In one, parts can move. In the other, they stay.
class Experiment {
 public:
  explicit Experiment(const Settings& settings)
      : settings_(settings),
        cluster_({.workers = settings.workers,
                  .boxes = settings.boxes,
                  .worker_megabits = settings.megabits,
                  .box_megabits = box_megabits()}) {
    for (const bool moves : {false, true}) {
      for (uint32_t index = 0; index < settings.boxes; ++index) start_box(index, moves);
    }
  }

  // Plays a new job and returns its iteration times. parts[i] is the box that owns part i at first.
  // The iterations before the straggler begins are not counted.
  std::vector<double> play(const std::string& job, bool moves, const std::vector<uint32_t>& parts,
                           Straggler straggler, uint32_t iterations) {
    cluster_.put_plan(name(moves), job, settings_.model_bytes, parts);
    RackJob ranks(cluster_.rack(), {.box = controls_[moves],
                                    .job = job,
                                    .model = settings_.model,
                                    .scale = settings_.scale,
                                    .window_bytes = kWindowBytes,
                                    .recovers = true});
    ranks.play(3, settings_.compute_ms);
    const auto disturbance = disturb(straggler);
    const auto run = ranks.play(iterations, settings_.compute_ms);
    ranks.finish();
    return run.iteration_ms;
  }

  double box_megabits() const {
    // The boxes' total rate is 1.25 times the workers' total rate.
    return 1.25 * settings_.megabits * settings_.workers / settings_.boxes;
  }

 private:
  static std::string name(bool moves) { return moves ? "moves" : "stays"; }

  void start_box(uint32_t index, bool moves) {
    RackBox box = cluster_.start_box(
        name(moves), index,
        {"--cluster.rebalance=" + std::string(moves ? "true" : "false"),
         "--cluster.rebalance_interval_ms=100", "--control.heartbeat_interval_ms=100"});
    controls_[moves] += (controls_[moves].empty() ? "" : ",") + box.control;
    boxes_.push_back(std::move(box));
  }

  std::unique_ptr<Disturbance> disturb(Straggler straggler) {
    using std::chrono::milliseconds;
    const double slow = box_megabits() / settings_.slow_by;
    const auto restore = [this] {
      for (uint32_t box = 0; box < settings_.boxes; ++box) {
        set_rate(box, box_megabits());
      }
    };
    constexpr milliseconds kForGood{3'600'000};
    switch (straggler) {
      case Straggler::kLink:
        return std::make_unique<Disturbance>([this, slow](uint64_t) { set_rate(kSlowBox, slow); },
                                             kForGood, restore);
      case Straggler::kProcessor:
        return std::make_unique<Disturbance>([this](uint64_t step) { hog(kSlowBox, step); },
                                             kHogTurn, [this] { signal_box(kSlowBox, SIGCONT); });
      case Straggler::kChanging:
        return std::make_unique<Disturbance>(
            [this](uint64_t step) {
              const uint64_t steps = std::chrono::seconds(settings_.change_s) / kHogTurn;
              if (step % steps == 0 && step > 0) signal_box(hogged_box(step - 1), SIGCONT);
              hog(hogged_box(step), step);
            },
            kHogTurn,
            [this] {
              for (uint32_t box = 0; box < settings_.boxes; ++box) signal_box(box, SIGCONT);
            });
      default: return nullptr;
    }
  }

  // The box runs in one of `slow_by` steps, as if a busy process took the rest of its core.
  void hog(uint32_t box, uint64_t step) const {
    signal_box(box, step % settings_.slow_by == 0 ? SIGCONT : SIGSTOP);
  }
  uint32_t hogged_box(uint64_t step) const {
    const uint64_t steps = std::chrono::seconds(settings_.change_s) / kHogTurn;
    return static_cast<uint32_t>((kSlowBox + step / steps) % settings_.boxes);
  }

  void set_rate(uint32_t box, double megabits) {
    Rack& rack = cluster_.rack();
    rack.set_link(rack.box(box), RackCluster::link(megabits));
  }

  // Signals the box in both clusters. Only one cluster works at a time, so the other is unaffected.
  void signal_box(uint32_t index, int number) const {
    for (const size_t box : {size_t{index}, size_t{index} + settings_.boxes}) {
      kill(boxes_[box].program->pid(), number);
    }
  }

  Settings settings_;
  RackCluster cluster_;
  std::vector<RackBox> boxes_;  // first the cluster whose parts stay, then the other
  std::map<bool, std::string> controls_;
};

void add_options(po::options_description& options) {
  options.add_options()("model", po::value<std::string>()->default_value("resnet50"), kModelHelp)(
      "scale", po::value<uint32_t>()->default_value(20),
      "divisor of the model: each tensor has its number of elements divided by this")(
      "workers", po::value<uint32_t>()->default_value(2), "worker machines")(
      "boxes", po::value<uint32_t>()->default_value(3), "boxes; at least two")(
      "megabits", po::value<double>()->default_value(400), "rate of a worker's cable, in Mbit/s")(
      "compute-ms", po::value<double>()->default_value(20), "computing time of one iteration")(
      "slow-by", po::value<uint32_t>()->default_value(4),
      "factor by which a cable or a box is slowed down")(
      "change-s", po::value<uint32_t>()->default_value(15),
      "seconds after which another box becomes slow, in the setting 'changing'")(
      "turns", po::value<uint32_t>()->default_value(3),
      "turns of all jobs in the setting 'none', where the difference is small")(
      "setting-turns", po::value<uint32_t>()->default_value(1),
      "turns of all jobs in the other settings")(
      "search-iterations", po::value<uint32_t>()->default_value(12),
      "iterations of each assignment that the oracle tries")(
      "still-iterations", po::value<uint32_t>()->default_value(15),
      "iterations of each job whose parts stay")("moving-iterations",
                                                 po::value<uint32_t>()->default_value(150),
                                                 "iterations of the job whose parts move")(
      "setting", po::value<std::string>()->default_value(""), "measure only this setting")(
      "inside", po::bool_switch(),
      "measure moves between the two pipelines of one box instead: settings none and core_hog");
}

Settings settings_from(const po::variables_map& options) {
  Settings settings{.model = options["model"].as<std::string>(),
                    .only = options["setting"].as<std::string>(),
                    .workers = options["workers"].as<uint32_t>(),
                    .boxes = std::max(2u, options["boxes"].as<uint32_t>()),
                    .scale = options["scale"].as<uint32_t>(),
                    .still_iterations = std::max(2u, options["still-iterations"].as<uint32_t>()),
                    .moving_iterations = std::max(2u, options["moving-iterations"].as<uint32_t>()),
                    .slow_by = std::max(2u, options["slow-by"].as<uint32_t>()),
                    .change_s = std::max(1u, options["change-s"].as<uint32_t>()),
                    .turns = std::max(1u, options["turns"].as<uint32_t>()),
                    .setting_turns = std::max(1u, options["setting-turns"].as<uint32_t>()),
                    .search_iterations = std::max(2u, options["search-iterations"].as<uint32_t>()),
                    .megabits = options["megabits"].as<double>(),
                    .compute_ms = options["compute-ms"].as<double>()};
  settings.model_bytes = played_bytes(settings.model, settings.scale);
  return settings;
}

// Returns the assignment in which the slow box has `share` parts and the others share the rest.
std::vector<uint32_t> assignment(uint32_t boxes, uint32_t share) {
  std::vector<uint32_t> parts(share, kSlowBox);
  for (uint32_t box = 0; parts.size() < boxes * kPartsPerBox; box = (box + 1) % boxes) {
    if (box != kSlowBox) parts.push_back(box);
  }
  return parts;
}

// Returns the best fixed assignment. If the boxes are equal, or slow in turn, that is the equal
// one. Otherwise the oracle tries each share of the slow box up to the equal one. It then tries the
// best two again, because the best of many short runs has been lucky.
std::vector<uint32_t> best_assignment(Experiment& experiment, const Settings& settings,
                                      const Setting& setting) {
  const bool is_slow =
      setting.straggler == Straggler::kLink || setting.straggler == Straggler::kProcessor;
  if (!is_slow) return assignment(settings.boxes, kPartsPerBox);
  std::vector<std::pair<double, uint32_t>> tried;  // milliseconds, share
  const auto run = [&](uint32_t share, const char* turn) {
    const std::string job = std::string(setting.name) + turn + std::to_string(share);
    return mean_ms(experiment.play(job, false, assignment(settings.boxes, share), setting.straggler,
                                   settings.search_iterations));
  };
  for (uint32_t share = 0; share <= kPartsPerBox; ++share) {
    tried.emplace_back(run(share, ".oracle"), share);
  }
  std::sort(tried.begin(), tried.end());
  for (size_t place = 0; place < 2; ++place)
    tried[place].first += run(tried[place].second, ".again");
  return assignment(settings.boxes, std::min(tried[0], tried[1]).second);
}

// The iteration times of one setting, all turns together.
struct Times {
  std::vector<double> still, moving, last_third, best;
};

nlohmann::json measure(Experiment& experiment, const Settings& settings, const Setting& setting) {
  const uint32_t count = settings.boxes * kPartsPerBox;
  std::vector<uint32_t> round_robin(count), by_bytes(count), dealt(count);
  for (uint32_t part = 0; part < count; ++part) {
    round_robin[part] = part % settings.boxes;
    by_bytes[part] = part / kPartsPerBox;
    dealt[part] = part < settings.boxes ? part : 0;
  }
  if (setting.straggler != Straggler::kAssignment) dealt = by_bytes;
  const std::string name = setting.name;
  const bool is_calm = setting.straggler == Straggler::kNone;
  // Where the straggler changes, each job has to see all of it.
  const bool is_long = is_calm || setting.straggler == Straggler::kChanging;
  const auto play = [&](const std::string& kind, bool moves, const std::vector<uint32_t>& parts) {
    return experiment.play(
        name + "." + kind, moves, parts, setting.straggler,
        moves || is_long ? settings.moving_iterations : settings.still_iterations);
  };
  const auto add = [](std::vector<double>& all, const std::vector<double>& more, size_t from = 0) {
    all.insert(all.end(), more.begin() + static_cast<ptrdiff_t>(from), more.end());
  };
  const auto best = best_assignment(experiment, settings, setting);
  Times times;
  for (uint32_t turn = 0; turn < (is_calm ? settings.turns : settings.setting_turns); ++turn) {
    const std::string number = turn == 0 ? "" : std::to_string(turn);
    add(times.still, play("static" + number, false, dealt));
    const auto moving = play("psld" + number, true, dealt);
    add(times.moving, moving);
    add(times.last_third, moving, moving.size() * 2 / 3);
    add(times.best, play("best" + number, false, best));
  }
  const auto dealt_round = play("round_robin", false, round_robin);
  const auto dealt_bytes = play("byte_balanced", false, by_bytes);
  const double whole = mean_ms(times.moving);
  const auto share = std::count(best.begin(), best.end(), kSlowBox);
  return {{"name", name},
          {"means", setting.means},
          {"iteration_ms",
           {{"static", mean_ms(times.still)},
            {"round_robin", mean_ms(dealt_round)},
            {"byte_balanced", mean_ms(dealt_bytes)},
            {"oracle", mean_ms(times.best)},
            {"psld", whole},
            {"psld_last_third", mean_ms(times.last_third)}}},
          {"oracle_parts_of_slow_box", share},
          {"fraction_of_oracle", mean_ms(times.best) / whole},
          {"fraction_of_oracle_last_third", mean_ms(times.best) / mean_ms(times.last_third)},
          {"speedup_over_static", mean_ms(times.still) / whole},
          {"speedup_over_round_robin", mean_ms(dealt_round) / whole},
          {"speedup_over_byte_balanced", mean_ms(dealt_bytes) / whole}};
}

void print_table(const nlohmann::json& figures, std::ostream& report) {
  report << "                            ms per iteration                "
            "speedup over    fraction of oracle\n"
         << "setting                  static  oracle    psld  last third  "
            "static  oracle  last third  parts\n"
         << std::fixed;
  for (const auto& setting : figures["settings"]) {
    const auto& ms = setting["iteration_ms"];
    report << std::left << std::setw(22) << setting["name"].get<std::string>() << std::right
           << std::setprecision(0) << std::setw(9) << ms["static"].get<double>() << std::setw(8)
           << ms["oracle"].get<double>() << std::setw(8) << ms["psld"].get<double>()
           << std::setw(12) << ms["psld_last_third"].get<double>() << std::setprecision(2)
           << std::setw(8) << setting["speedup_over_static"].get<double>() << std::setw(8)
           << setting["fraction_of_oracle"].get<double>() << std::setw(12)
           << setting["fraction_of_oracle_last_third"].get<double>() << std::setw(7)
           << setting["oracle_parts_of_slow_box"].get<uint32_t>() << "\n";
  }
}

nlohmann::json run(const po::variables_map& options, std::ostream& report) {
  const Settings settings = settings_from(options);
  if (options["inside"].as<bool>()) {
    return rack_psld_inside::run({.model = settings.model,
                                  .only = settings.only,
                                  .workers = settings.workers,
                                  .scale = settings.scale,
                                  .iterations = settings.moving_iterations,
                                  .slow_by = settings.slow_by,
                                  .turns = settings.turns,
                                  .megabits = settings.megabits,
                                  .compute_ms = settings.compute_ms},
                                 report);
  }
  Experiment experiment(settings);
  nlohmann::json list = nlohmann::json::array();
  double best = 0;
  double worst = 0;  // worst ratio of the settings with a straggler
  for (const Setting& setting : kSettings) {
    if (!settings.only.empty() && settings.only != setting.name) continue;
    report << "\r  " << setting.name << "                " << std::flush;
    list.push_back(measure(experiment, settings, setting));
    const double speedup = list.back()["speedup_over_static"];
    if (setting.straggler == Straggler::kNone) continue;
    best = std::max(best, speedup);
    worst = worst == 0 ? speedup : std::min(worst, speedup);
  }
  report << "\r";
  if (list.empty())
    throw std::runtime_error(
        "--setting '" + settings.only +
        "' is unknown; use none, imbalanced_assignment, bandwidth_contention, cpu_hog or changing");
  nlohmann::json figures = {{"model", settings.model},
                            {"scale", settings.scale},
                            {"model_bytes", settings.model_bytes},
                            {"workers", settings.workers},
                            {"boxes", settings.boxes},
                            {"worker_megabits", settings.megabits},
                            {"box_megabits", experiment.box_megabits()},
                            {"slow_by", settings.slow_by},
                            {"settings", std::move(list)},
                            {"best_speedup", best},
                            {"worst_speedup", worst}};
  print_table(figures, report);
  return figures;
}

const ScenarioRegistration kRegistration({.name = "psld",
                                          .summary = "a job whose parts move away from slow boxes, "
                                                     "compared with one whose parts stay, on a "
                                                     "shaped rack",
                                          .add_options = add_options,
                                          .run = run});

}  // namespace
}  // namespace pbox::perf::rack_psld
