// Runs PHub's hot loop in memory, to compare chunk sizes, tall against wide, and stores that bypass
// the cache.
#include <iomanip>
#include <stdexcept>
#include <thread>

#include "base/cpu_set.h"
#include "perf/measure.h"
#include "perf/phub/hot_loop.h"
#include "perf/phub/parts.h"

namespace pbox::perf {
namespace {

constexpr uint32_t kLoopWorkers = 4;
constexpr uint64_t kLoopChunk = 32 << 10;
constexpr uint64_t kWholeTensor = 0;
constexpr size_t kRepetitions = 11;

struct Named {
  std::string name;
  LoopVariant variant;
};

std::string size_name(uint64_t chunk_bytes) {
  if (chunk_bytes == kWholeTensor) return "whole tensors";
  return std::to_string(chunk_bytes >> 10) + " KiB";
}

uint32_t processor_count() {
  const auto allowed = current_affinity();
  return allowed ? static_cast<uint32_t>(allowed->cpus.size())
                 : std::max(1u, std::thread::hardware_concurrency());
}

// Measures a group of variants. Prints the rate of each, and its rate over that of the first.
nlohmann::json measure_group(const std::string& title, HotLoop& loop, bool steps,
                             const std::vector<Named>& variants, std::ostream& report) {
  std::vector<Alternative> all;
  for (const Named& one : variants) {
    all.push_back({.name = one.name, .bytes = loop.gradient_bytes(), .pass = [&loop, one] {
                     loop.pass(one.variant);
                   }});
  }
  measure_interleaved(all, kRepetitions);
  report << title << (steps ? ", sum and Nesterov step" : ", sum") << "\n";
  nlohmann::json rows = nlohmann::json::array();
  for (const Alternative& one : all) {
    // The ratio of two rates is the inverse of the ratio of the times.
    const Spread ratio = spread(ratios(all.front().seconds, one.seconds));
    rows.push_back({{"name", one.name},
                    {"gb_per_s", gigabytes_per_second(one)},
                    {"over_first", ratio.median},
                    {"over_first_quartiles", {ratio.low, ratio.high}}});
    report << "  " << std::left << std::setw(40) << one.name << std::right << std::fixed
           << std::setprecision(2) << std::setw(7) << gigabytes_per_second(one) << " GB/s"
           << std::setw(8) << ratio.median << "  (" << ratio.low << " to " << ratio.high << ")\n";
  }
  if (const uint64_t wrong = loop.count_wrong_sums(); wrong != 0) {
    throw std::runtime_error(title + ": " + std::to_string(wrong) + " sums are wrong");
  }
  report << std::flush;
  return {{"title", title}, {"optimizer", steps ? "nesterov" : "none"}, {"rows", rows}};
}

std::vector<Named> chunk_sizes(uint32_t threads, bool whole) {
  std::vector<Named> variants = {
      {size_name(kLoopChunk), {.threads = threads, .chunk_bytes = kLoopChunk}}};
  for (uint64_t bytes = 4 << 10; bytes <= 4 << 20; bytes *= whole ? 2 : 4) {
    if (bytes == kLoopChunk) continue;
    variants.push_back({size_name(bytes), {.threads = threads, .chunk_bytes = bytes}});
  }
  return variants;
}

std::vector<Named> divisions(uint32_t threads) {
  std::vector<Named> variants = {{"tall, 32 KiB", {.threads = threads}}};
  for (const uint64_t bytes : {kWholeTensor, uint64_t{4 << 20}, kLoopChunk}) {
    variants.push_back({"wide, " + size_name(bytes),
                        {.division = Division::kWide, .threads = threads, .chunk_bytes = bytes}});
    variants.push_back(
        {"wide, " + size_name(bytes) + ", a barrier per push",
         {.division = Division::kWidePerPush, .threads = threads, .chunk_bytes = bytes}});
  }
  return variants;
}

std::vector<Named> stores(uint32_t threads, bool steps) {
  const auto variant = [&](bool sums, bool step) {
    return LoopVariant{.threads = threads, .sums_bypass_cache = sums, .steps_bypass_cache = step};
  };
  if (!steps) return {{"cached", variant(false, false)}, {"bypassing", variant(true, false)}};
  return {{"both cached", variant(false, false)},
          {"sums cached, steps bypassing", variant(false, true)},
          {"sums bypassing, steps cached", variant(true, false)},
          {"both bypassing", variant(true, true)}};
}

}  // namespace

nlohmann::json measure_hot_loop(const PhubSettings& settings, std::ostream& report) {
  const auto tensors = model_by_name(settings.model);
  if (!tensors) throw std::runtime_error(tensors.error().message);
  const uint32_t threads = processor_count();
  nlohmann::json groups = nlohmann::json::array();
  const auto workers = settings.whole ? std::vector<uint32_t>{2, kLoopWorkers, 8}
                                      : std::vector<uint32_t>{kLoopWorkers};
  for (const uint32_t worker_count : workers) {
    report << "loop: gradients of " << worker_count << " workers in memory, " << threads
           << " threads; GB/s of gradients, and ratio to the first of the group (quartiles)\n";
    for (const bool steps : {false, true}) {
      HotLoop loop(*tensors, worker_count, steps);
      const auto measure = [&](const std::string& title, const std::vector<Named>& variants) {
        groups.push_back(measure_group(title, loop, steps, variants, report));
        groups.back()["workers"] = worker_count;
        groups.back()["threads"] = threads;
      };
      measure("chunk sizes, tall", chunk_sizes(threads, settings.whole));
      measure("tall against wide", divisions(threads));
      measure("stores", stores(threads, steps));
    }
  }
  report << "\n";
  return groups;
}

}  // namespace pbox::perf
