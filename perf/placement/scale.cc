// Scenario `scale`: what many boxes, ranks and chunks cost the control plane, with the product's
// control plane on the simulator's boxes (pbox-sim --scale), and what rebalancing gains in a model.
#include <algorithm>
#include <filesystem>
#include <iomanip>
#include <stdexcept>

#include "base/limits.h"
#include "perf/measure.h"
#include "perf/peers/program.h"
#include "perf/placement/stragglers.h"
#include "perf/scenario.h"

namespace pbox::perf::placement_scale {
namespace {

constexpr int kRunLimitMs = 3'600'000;
constexpr const char* kSteps[] = {"plan", "join", "drain", "failover"};

struct Size {
  uint32_t boxes = 0;
  uint32_t ranks = 0;  // in all jobs
  uint32_t chunks = 0;
};

// A job has at most limits::kWorkersPerJobMax ranks, so that more make several jobs.
nlohmann::json simulate(const Size& size) {
  const uint32_t jobs = (size.ranks + limits::kWorkersPerJobMax - 1) / limits::kWorkersPerJobMax;
  const auto program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "pbox-sim";
  Program simulator({program.string(), "--scale", "--json", "--boxes", std::to_string(size.boxes),
                     "--jobs", std::to_string(jobs), "--ranks", std::to_string(size.ranks / jobs),
                     "--chunks", std::to_string(size.chunks)});
  auto row = nlohmann::json::parse(simulator.read_line(kRunLimitMs));
  if (const std::string violation = row.at("violation"); !violation.empty()) {
    throw std::runtime_error("the simulated rack fails: " + violation);
  }
  return row;
}

// Returns how the CPU time of a step grows with a size, as the exponent of the power that fits
// best.
double growth(const nlohmann::json& rows, const std::vector<double>& sizes, const char* step) {
  std::vector<double> seconds;
  for (const auto& row : rows) seconds.push_back(row.at(step).at("control_seconds"));
  return growth_exponent(sizes, seconds);
}

// Runs one rack per size, and reports each row as soon as it is there.
nlohmann::json measure(const std::vector<Size>& sizes, uint32_t Size::*grows,
                       std::ostream& report) {
  report << "  boxes  ranks   chunks  parts  connections";
  for (const char* step : kSteps) report << std::setw(10) << step << "   s  CPU";
  report << "\n" << std::fixed;
  nlohmann::json rows = nlohmann::json::array();
  std::vector<double> grown;
  for (const Size& size : sizes) {
    const nlohmann::json row = simulate(size);
    report << std::setw(7) << size.boxes << std::setw(7) << size.ranks << std::setw(9)
           << size.chunks << std::setw(7) << row.at("parts_per_job").get<uint32_t>()
           << std::setw(13) << row.at("connections_per_box").get<uint64_t>();
    for (const char* step : kSteps) {
      report << std::setprecision(3) << std::setw(10)
             << row.at(step).at("simulated_seconds").get<double>() << std::setw(9)
             << row.at(step).at("control_seconds").get<double>();
    }
    report << std::endl;
    rows.push_back(row);
    grown.push_back(size.*grows);
  }
  nlohmann::json series = {{"rows", rows}};
  report << "exponents of growth of the CPU time:" << std::setprecision(2);
  for (const char* step : kSteps) {
    series["growth"][step] = growth(rows, grown, step);
    report << " " << step << " " << series["growth"][step].get<double>();
  }
  report << std::endl;
  return series;
}

// Returns, for each setting and each fixed map, the simulated time under that map over the time
// under the rebalancer. Each ratio is the median over the seeds.
nlohmann::json compare_maps(std::ostream& report) {
  struct Other {
    const char* name;
    MapStrategy strategy;
  };
  constexpr Other kOthers[] = {{"static", MapStrategy::kStatic},
                               {"round_robin", MapStrategy::kRoundRobin},
                               {"byte_balanced", MapStrategy::kByteBalanced}};
  constexpr uint64_t kSeeds = 10;
  nlohmann::json figures;
  report << "simulated speed-up of rebalancing over    static  round-robin  byte-balanced\n"
         << std::setprecision(3);
  for (const StragglerSetting& setting : straggler_settings()) {
    std::vector<double> moving;
    for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
      moving.push_back(train(setting, MapStrategy::kRebalanced, seed).seconds);
    }
    report << "  " << std::left << std::setw(36) << setting.name << std::right;
    for (const Other& other : kOthers) {
      std::vector<double> fixed;
      for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
        fixed.push_back(train(setting, other.strategy, seed).seconds);
      }
      const double speedup = median_ratio(fixed, moving);
      figures[setting.name][other.name] = speedup;
      report << std::setw(10) << speedup;
    }
    report << "\n";
  }
  return figures;
}

void add_options(po::options_description& options) {
  options.add_options()("boxes", po::value<uint32_t>()->default_value(64),
                        "the most boxes, of 4 pipelines")(
      "ranks", po::value<uint32_t>()->default_value(1024),
      "the most ranks, in jobs of at most 256")(
      "chunks", po::value<uint32_t>()->default_value(1'000'000), "the most chunks of a job");
}

// Returns a quarter of a quarter, a quarter, and the whole of a size.
std::vector<uint32_t> three_sizes(const po::variables_map& options, const char* option,
                                  uint32_t least, uint32_t most) {
  const auto size = options[option].as<uint32_t>();
  if (size < least || size > most) {
    throw std::runtime_error("--" + std::string(option) + " " + std::to_string(size) + ": use " +
                             std::to_string(least) + " to " + std::to_string(most));
  }
  return {size / 16, size / 4, size};
}

nlohmann::json run(const po::variables_map& options, std::ostream& report) {
  constexpr uint32_t kRanksFew = 2, kChunksFew = 1024;
  const auto boxes = three_sizes(options, "boxes", 64, 256);
  const auto ranks = three_sizes(options, "ranks", 32, 4096);
  const auto chunks = three_sizes(options, "chunks", 16 * kChunksFew, limits::kChunksPerJobMax);
  std::vector<Size> by_boxes, by_ranks, by_chunks;
  for (const uint32_t count : boxes) by_boxes.push_back({count, ranks.front(), kChunksFew});
  for (const uint32_t count : ranks) by_ranks.push_back({boxes.back(), count, kChunksFew});
  for (const uint32_t count : chunks) by_chunks.push_back({boxes.back(), kRanksFew, count});
  return {{"by_boxes", measure(by_boxes, &Size::boxes, report)},
          {"by_chunks", measure(by_chunks, &Size::chunks, report)},
          {"by_ranks", measure(by_ranks, &Size::ranks, report)},
          {"speedup_by_rebalancing", compare_maps(report)}};
}

const ScenarioRegistration kRegistration(
    {.name = "scale",
     .summary = "cost of many boxes, ranks and chunks for the control plane, in simulated racks",
     .add_options = add_options,
     .run = run});

}  // namespace
}  // namespace pbox::perf::placement_scale
