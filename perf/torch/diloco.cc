// Scenario `diloco`: the share of its time for which a rank computes, when it exchanges in each
// step and with DiLoCo, over a box and over torchft, behind cables of several rates. The ranks are
// diloco.py on a shaped rack.
#include <algorithm>
#include <iomanip>
#include <stdexcept>
#include <string_view>

#include "perf/lists.h"
#include "perf/python.h"
#include "perf/rack/rack.h"
#include "perf/scenario.h"

namespace pbox::perf::torch_diloco {
namespace {

constexpr uint32_t kRateMbitMax = 1'000'000;
constexpr uint32_t kMtu = 1500;
constexpr int kReadyMs = 10 * 60 * 1000;

constexpr uint32_t kPeriod = 24;  // steps between two exchanges of DiLoCo

// A way to train. With `sync_every` 0 it exchanges in each step.
struct Way {
  const char* name;
  const char* system;
  const char* mode;
  const char* wire;
  uint32_t sync_every;
  uint32_t delay = 4;  // torchft takes one below the 4 steps between the starts of two fragments
};

constexpr Way kWays[] = {{"each step, f32", "pbox", "aggregate", "f32", 0},
                         {"each step, q8", "pbox", "aggregate", "q8", 0},
                         {"each step, q4", "pbox", "aggregate", "q4", 0},
                         {"optimizer, f32", "pbox", "optimize", "f32", 0},
                         {"optimizer, q8", "pbox", "optimize", "q8", 0},
                         {"optimizer, q4", "pbox", "optimize", "q4", 0},
                         {"torchft, f32", "torchft", "none", "f32", kPeriod, 3},
                         {"diloco, f32", "pbox", "optimize", "f32", kPeriod},
                         {"diloco, q8", "pbox", "optimize", "q8", kPeriod},
                         {"diloco, q4", "pbox", "optimize", "q4", kPeriod}};

void add_options(po::options_description& options) {
  add_python_option(options);
  options.add_options()("workers", po::value<uint32_t>()->default_value(4), "worker machines")(
      "rates-mbit", po::value<std::string>()->default_value("100,1000"),
      "rates of a worker's cable, in Mbit/s of Ethernet frames, separated by commas; the box's "
      "cable has --workers times this rate")("step-ms", po::value<double>()->default_value(200),
                                             "time of computing a step")(
      "periods", po::value<uint32_t>()->default_value(2),
      "number of timed periods of 24 steps; where each step has an exchange, half as many steps "
      "are timed")("delay-us", po::value<uint32_t>()->default_value(0),
                   "delay of each worker's cable in each direction")(
      "torchft", "compare with torchft's DiLoCo over Gloo, which the Python must have")(
      "only", po::value<std::string>()->default_value(""),
      "measure only the ways whose name contains this text, such as diloco");
}

// Returns the number of timed steps.
uint32_t steps_of(const Way& way, const po::variables_map& options) {
  const uint32_t periods = std::max(1u, options["periods"].as<uint32_t>());
  return periods * (way.sync_every > 0 ? way.sync_every : 12);
}

std::vector<std::string> command_of(const Way& way, const po::variables_map& options,
                                    const std::string& python, const Rack& rack, const RackBox& box,
                                    uint32_t rank) {
  std::string job = way.name;
  std::replace_if(
      job.begin(), job.end(), [](char c) { return c == ' ' || c == ','; }, '-');
  return {python,         std::string(PBOX_TORCH_FOLDER) + "/diloco.py",
          "--system",     way.system,
          "--box",        box.control,
          "--address",    rack.worker(rank).address,
          "--first",      rack.worker(0).address,
          "--job",        job,
          "--rank",       std::to_string(rank),
          "--workers",    std::to_string(options["workers"].as<uint32_t>()),
          "--mode",       way.mode,
          "--wire",       way.wire,
          "--sync-every", std::to_string(way.sync_every),
          "--fragments",  "6",
          "--delay",      std::to_string(way.delay),
          "--steps",      std::to_string(steps_of(way, options)),
          "--warmup",     std::to_string(way.sync_every > 0 ? way.sync_every : 2),
          "--step-ms",    std::to_string(options["step-ms"].as<double>())};
}

nlohmann::json measure(const Way& way, const po::variables_map& options, const Rack& rack,
                       const RackBox& box, const std::string& python) {
  std::vector<std::unique_ptr<Program>> ranks;
  for (uint32_t rank = 0; rank < rack.workers().size(); ++rank) {
    ranks.push_back(rack.run(rack.worker(rank), command_of(way, options, python, rack, box, rank)));
  }
  for (const auto& rank : ranks) {
    if (rank->read_line(kReadyMs) != "ready") throw std::runtime_error("a rank has failed");
  }
  for (const auto& rank : ranks) rank->write_line("");
  double longest_s = 0, cpu_s = 0, bytes = 0;
  for (const auto& rank : ranks) {
    const auto result = nlohmann::json::parse(rank->read_line(kReadyMs));
    longest_s = std::max(longest_s, result["elapsed_s"].get<double>());
    cpu_s += result["cpu_s"].get<double>();
    bytes = std::max(bytes, result["bytes"].get<double>());
  }
  for (const auto& rank : ranks) rank->write_line("");
  for (const auto& rank : ranks) rank->finish();
  const double steps = steps_of(way, options);
  const double computing_s = steps * options["step-ms"].as<double>() / 1e3;
  return {{"way", way.name},
          {"ms_per_step", longest_s * 1e3 / steps},
          {"waiting_ms_per_step", (longest_s - computing_s) * 1e3 / steps},
          {"utilisation", computing_s / longest_s},
          {"mb_per_step", bytes / 1e6 / steps},
          {"cores_of_ranks", cpu_s / longest_s}};
}

nlohmann::json measure_rate(const po::variables_map& options, uint32_t rate_mbit,
                            const std::string& python, std::ostream& report) {
  Rack rack(balanced_rack(options["workers"].as<uint32_t>(), kMtu,
                          {.bits_per_second = uint64_t{rate_mbit} * 1'000'000,
                           .delay_us = options["delay-us"].as<uint32_t>()}));
  const RackBox box = rack.start_box(0, {});
  nlohmann::json figures = {{"rate_mbit", rate_mbit}};
  for (const Way& way : kWays) {
    if (std::string_view(way.system) == "torchft" && options.count("torchft") == 0) continue;
    if (std::string(way.name).find(options["only"].as<std::string>()) == std::string::npos)
      continue;
    const auto one = measure(way, options, rack, box, python);
    report << std::setw(8) << rate_mbit << "  " << std::left << std::setw(16) << way.name
           << std::right << std::fixed << std::setprecision(1) << std::setw(12)
           << one["ms_per_step"].get<double>() << std::setw(10)
           << one["waiting_ms_per_step"].get<double>() << std::setprecision(3) << std::setw(13)
           << one["utilisation"].get<double>() << std::setprecision(2) << std::setw(12)
           << one["mb_per_step"].get<double>() << std::setw(8)
           << one["cores_of_ranks"].get<double>() << "\n"
           << std::flush;
    figures["ways"].push_back(one);
  }
  return figures;
}

nlohmann::json run(const po::variables_map& options, std::ostream& report) {
  if (options["workers"].as<uint32_t>() == 0) throw std::runtime_error("--workers must be above 0");
  if (!(options["step-ms"].as<double>() > 0)) throw std::runtime_error("--step-ms must be above 0");
  const std::string python = python_of(options);
  nlohmann::json figures = {{"workers", options["workers"].as<uint32_t>()},
                            {"step_ms", options["step-ms"].as<double>()},
                            {"delay_us", options["delay-us"].as<uint32_t>()}};
  report << "  Mbit/s  exchange          ms a step  waits, ms  utilisation   MB a step   cores\n";
  const auto rates =
      numbers_of("--rates-mbit", options["rates-mbit"].as<std::string>(), 1, kRateMbitMax);
  for (const uint32_t rate_mbit : rates) {
    figures["rates"].push_back(measure_rate(options, rate_mbit, python, report));
  }
  return figures;
}

const ScenarioRegistration kRegistration(
    {.name = "diloco",
     .summary =
         "share of computing with DiLoCo and with an exchange in each step, on a shaped rack",
     .add_options = add_options,
     .run = run});

}  // namespace
}  // namespace pbox::perf::torch_diloco
