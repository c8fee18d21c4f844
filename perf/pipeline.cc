// Scenario `pipeline`: the speed of a whole pipeline over the speed of the bare sum kernel
// (pipeline_bench.h).
//
// The pipeline that is compared with the kernel has a flight recorder, as boxes have by default.
// Four further pipelines have none: a plain one, one whose counters another thread reads, one that
// adds in the order of ranks, and one whose guard zeroes unsound values.
#include <algorithm>
#include <iomanip>
#include <stdexcept>

#include "perf/measure.h"
#include "perf/pipeline_bench.h"
#include "perf/scenario.h"

namespace pbox::perf::pipeline_scenario {
namespace {

constexpr size_t kRecorded = 0, kPlain = 1, kScraped = 2, kOrdered = 3, kGuarded = 4;
constexpr PipelineKind kKinds[] = {
    {},
    {.has_recorder = false},
    {.has_recorder = false, .is_scraped = true},
    {.has_recorder = false, .numerics = wire::Numerics::kOrdered},
    {.has_recorder = false, .guard = wire::Guard::kZero},
};

nlohmann::json measure(const BenchShape& shape, uint32_t repetitions, std::ostream& report) {
  PipelineBench bench(shape, kKinds);
  bench.run(repetitions);
  const auto& kernel = bench.kernel_seconds();
  const auto& recorded = bench.seconds(kRecorded);
  const auto& plain = bench.seconds(kPlain);
  const double gigabytes = bench.gradient_bytes() / 1e9;
  nlohmann::json figures = {
      {"fragment_bytes", shape.fragment_bytes},
      {"kernel_gbps", gigabytes / median(kernel)},
      {"pipeline_gbps", gigabytes / median(recorded)},
      {"pipeline_over_kernel", median_ratio(kernel, recorded)},
      {"recorded_over_plain", median_ratio(plain, recorded)},
      {"scraped_over_plain", median_ratio(plain, bench.seconds(kScraped))},
      {"ordered_over_plain", median_ratio(plain, bench.seconds(kOrdered))},
      {"guarded_over_plain", median_ratio(plain, bench.seconds(kGuarded))},
      {"measured_over_recorded",
       median_ratio(bench.measured_kernel_seconds(), bench.measured_seconds(kRecorded)) /
           median_ratio(kernel, recorded)},
      {"nanoseconds_per_packet", median(recorded) * 1e9 / bench.packet_count()}};
  report << std::setw(10) << shape.fragment_bytes << std::fixed << std::setprecision(2)
         << std::setw(12) << figures["kernel_gbps"].get<double>() << std::setw(12)
         << figures["pipeline_gbps"].get<double>() << std::setw(10)
         << figures["pipeline_over_kernel"].get<double>() << std::setprecision(0) << std::setw(12)
         << figures["nanoseconds_per_packet"].get<double>() << std::setprecision(3) << std::setw(10)
         << figures["recorded_over_plain"].get<double>() << std::setw(10)
         << figures["scraped_over_plain"].get<double>() << std::setw(10)
         << figures["ordered_over_plain"].get<double>() << std::setw(10)
         << figures["guarded_over_plain"].get<double>() << std::setw(10)
         << figures["measured_over_recorded"].get<double>() << std::endl;
  return figures;
}

void add_options(po::options_description& options) {
  options.add_options()("workers", po::value<uint32_t>()->default_value(4),
                        "workers that push, 1 to 64")(
      "repetitions", po::value<uint32_t>()->default_value(15), "timed rounds");
}

nlohmann::json run(const po::variables_map& options, std::ostream& report) {
  const auto workers = options["workers"].as<uint32_t>();
  const auto repetitions = std::max(1u, options["repetitions"].as<uint32_t>());
  if (workers == 0 || workers > 64) throw std::runtime_error("--workers must be in [1, 64]");
  report << "GB/s of gradients that one core adds, ResNet-50 in 161 tensors, " << workers
         << " workers\n  fragment      kernel    pipeline     ratio   ns/packet  recorded   "
            "scraped   ordered   guarded  measured\n";
  nlohmann::json figures;
  for (const uint32_t fragment_bytes :
       {limits::kFragmentBytesJumbo, limits::kFragmentBytesEthernet}) {
    figures["points"].push_back(measure({workers, fragment_bytes}, repetitions, report));
  }
  figures["workers"] = workers;
  figures["pipeline_over_kernel"] = figures["points"][0]["pipeline_over_kernel"];
  figures["pipeline_over_kernel_1408"] = figures["points"][1]["pipeline_over_kernel"];
  return figures;
}

const ScenarioRegistration kRegistration(
    {.name = "pipeline",
     .summary = "one core's pipeline, compared with the bare sum kernel",
     .add_options = add_options,
     .run = run});

}  // namespace
}  // namespace pbox::perf::pipeline_scenario
