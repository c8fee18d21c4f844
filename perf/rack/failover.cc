// Measures how long a job stalls when a box that owns some of its parts is killed or drained. The
// result is the job's longest iteration, on a shaped rack of several boxes.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <iomanip>
#include <stdexcept>
#include <thread>

#include "perf/measure.h"
#include "perf/rack/cluster.h"
#include "perf/rack/job.h"
#include "perf/scenario.h"

namespace pbox::perf::rack_failover {
namespace {

constexpr char kCluster[] = "failover";
constexpr uint32_t kPartsPerBox = 8;
// Lease of the boxes. A killed box stays registered until its lease expires.
constexpr char kLease[] = "--cluster.lease_ttl_s=2";

struct Settings {
  std::string model;
  uint32_t workers, boxes, scale, turns, iterations;
  double megabits, compute_ms;
  uint64_t model_bytes = 0;
};

enum class Event { kNothing, kDrain, kKill };
constexpr const char* kNames[] = {"nothing", "drain", "kill"};

class Experiment {
 public:
  explicit Experiment(const Settings& settings)
      : settings_(settings),
        cluster_({.workers = settings.workers,
                  .boxes = settings.boxes,
                  .worker_megabits = settings.megabits,
                  .box_megabits = settings.megabits}) {
    for (uint32_t index = 0; index < settings.boxes; ++index) boxes_.push_back(start_box(index));
    cluster_.await_boxes(kCluster, settings.boxes);
  }

  // Plays a new job and returns its iteration times. The event happens to one of its boxes after
  // about a third of the iterations.
  std::vector<double> play(Event event, uint32_t turn) {
    const std::string job = std::string(kNames[static_cast<size_t>(event)]) + std::to_string(turn);
    std::vector<uint32_t> parts(settings_.boxes * kPartsPerBox);
    for (uint32_t part = 0; part < parts.size(); ++part) parts[part] = part % settings_.boxes;
    cluster_.put_plan(kCluster, job, settings_.model_bytes, parts);
    RackJob ranks(cluster_.rack(), {.box = controls(),
                                    .job = job,
                                    .model = settings_.model,
                                    .scale = settings_.scale,
                                    .recovers = true});
    const auto warm = ranks.play(5, settings_.compute_ms).iteration_ms;
    const double third_ms = median(warm) * settings_.iterations / 3;
    const uint32_t box = turn % settings_.boxes;
    std::jthread happens([&, this] {
      std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(third_ms));
      if (event == Event::kKill) kill(boxes_[box].program->pid(), SIGKILL);
      if (event == Event::kDrain) cluster_.drain(kCluster, box, true);
    });
    const auto run = ranks.play(settings_.iterations, settings_.compute_ms);
    happens.join();
    ranks.finish();
    if (event == Event::kDrain) cluster_.drain(kCluster, box, false);
    if (event == Event::kKill) {
      cluster_.await_boxes(kCluster, settings_.boxes - 1);
      boxes_[box] = start_box(box);
      cluster_.await_boxes(kCluster, settings_.boxes);
    }
    return run.iteration_ms;
  }

 private:
  RackBox start_box(uint32_t index) const {
    return cluster_.start_box(kCluster, index, {kLease, "--cluster.rebalance=false"});
  }
  std::string controls() const {
    std::string list;
    for (const RackBox& box : boxes_) list += (list.empty() ? "" : ",") + box.control;
    return list;
  }

  Settings settings_;
  RackCluster cluster_;
  std::vector<RackBox> boxes_;
};

void add_options(po::options_description& options) {
  options.add_options()("model", po::value<std::string>()->default_value("resnet50"), kModelHelp)(
      "scale", po::value<uint32_t>()->default_value(20),
      "divisor of the model: each tensor has its number of elements divided by this")(
      "workers", po::value<uint32_t>()->default_value(2), "worker machines")(
      "boxes", po::value<uint32_t>()->default_value(3), "boxes; at least two")(
      "megabits", po::value<double>()->default_value(400), "rate of every cable, in Mbit/s")(
      "compute-ms", po::value<double>()->default_value(20), "computing time of one iteration")(
      "turns", po::value<uint32_t>()->default_value(5), "number of turns of each event")(
      "iterations", po::value<uint32_t>()->default_value(45), "iterations of each job");
}

Settings settings_from(const po::variables_map& options) {
  Settings settings{.model = options["model"].as<std::string>(),
                    .workers = options["workers"].as<uint32_t>(),
                    .boxes = std::max(2u, options["boxes"].as<uint32_t>()),
                    .scale = options["scale"].as<uint32_t>(),
                    .turns = std::max(1u, options["turns"].as<uint32_t>()),
                    .iterations = std::max(6u, options["iterations"].as<uint32_t>()),
                    .megabits = options["megabits"].as<double>(),
                    .compute_ms = options["compute-ms"].as<double>()};
  settings.model_bytes = played_bytes(settings.model, settings.scale);
  return settings;
}

nlohmann::json measure(Experiment& experiment, Event event, uint32_t turns) {
  std::vector<double> typical, longest, stalls;
  for (uint32_t turn = 0; turn < turns; ++turn) {
    const auto times = experiment.play(event, turn);
    typical.push_back(median(times));
    longest.push_back(*std::max_element(times.begin(), times.end()));
    stalls.push_back((longest.back() - typical.back()) / typical.back());
  }
  return {
      {"event", kNames[static_cast<size_t>(event)]},
      {"iteration_ms", median(typical)},
      {"longest_ms",
       {{"median", median(longest)}, {"max", *std::max_element(longest.begin(), longest.end())}}},
      {"stall_rounds",
       {{"median", median(stalls)}, {"max", *std::max_element(stalls.begin(), stalls.end())}}}};
}

void print_table(const nlohmann::json& figures, std::ostream& report) {
  report << "            ms per     longest, ms        longest minus median, in rounds\n"
         << "event    iteration   median     max             median     max\n"
         << std::fixed;
  for (const auto& event : figures["events"]) {
    report << std::left << std::setw(9) << event["event"].get<std::string>() << std::right
           << std::setprecision(0) << std::setw(9) << event["iteration_ms"].get<double>()
           << std::setw(9) << event["longest_ms"]["median"].get<double>() << std::setw(8)
           << event["longest_ms"]["max"].get<double>() << std::setprecision(2) << std::setw(19)
           << event["stall_rounds"]["median"].get<double>() << std::setw(8)
           << event["stall_rounds"]["max"].get<double>() << "\n";
  }
}

nlohmann::json run(const po::variables_map& options, std::ostream& report) {
  const Settings settings = settings_from(options);
  Experiment experiment(settings);
  nlohmann::json list = nlohmann::json::array();
  for (const Event event : {Event::kNothing, Event::kDrain, Event::kKill}) {
    report << "\r  " << kNames[static_cast<size_t>(event)] << "      " << std::flush;
    list.push_back(measure(experiment, event, settings.turns));
  }
  report << "\r";
  nlohmann::json figures = {{"model", settings.model},
                            {"scale", settings.scale},
                            {"model_bytes", settings.model_bytes},
                            {"workers", settings.workers},
                            {"boxes", settings.boxes},
                            {"megabits", settings.megabits},
                            {"turns", settings.turns},
                            {"events", std::move(list)}};
  print_table(figures, report);
  return figures;
}

const ScenarioRegistration kRegistration({.name = "failover",
                                          .summary = "stall of a job on several boxes when "
                                                     "one of them is killed or drained",
                                          .add_options = add_options,
                                          .run = run});

}  // namespace
}  // namespace pbox::perf::rack_failover
