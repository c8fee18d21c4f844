// Measures the speed of a pipeline over that of the bare sum kernel, without keys and with them.
// Every packet of a worker is opened and every packet of a result is sealed, each worker's with
// keys of its own.
#include <iomanip>

#include "perf/pipeline_bench.h"
#include "perf/secure/parts.h"

namespace pbox::perf {
namespace {

constexpr uint32_t kPipelineWorkers = 4;
constexpr uint32_t kPipelineTurns = 31;
constexpr PipelineKind kKinds[] = {
    {.suite = kSuites[0]}, {.suite = kSuites[1]}, {.suite = kSuites[2]}};

nlohmann::json measure(const BenchShape& shape, uint32_t turns, std::ostream& report) {
  PipelineBench bench(shape, kKinds);
  bench.run(turns);
  nlohmann::json figures = {{"fragment_bytes", shape.fragment_bytes}};
  for (size_t kind = 0; kind < std::size(kKinds); ++kind) {
    const char* name = name_of(kKinds[kind].suite);
    const Spread over_kernel = spread(ratios(bench.kernel_seconds(), bench.seconds(kind)));
    const Spread over_off = spread(ratios(bench.seconds(0), bench.seconds(kind)));
    const double ns = median(bench.seconds(kind)) * 1e9 / bench.packet_count();
    report << std::setw(10) << shape.fragment_bytes << std::setw(6) << name << std::fixed
           << std::setprecision(0) << std::setw(12) << ns;
    print(over_kernel, report);
    print(over_off, report);
    report << std::endl;
    figures[name] = {{"nanoseconds_per_packet", ns},
                     {"over_kernel", to_json(over_kernel)},
                     {"over_off", to_json(over_off)}};
  }
  return figures;
}

}  // namespace

nlohmann::json measure_pipelines(const SecureOptions& options, std::ostream& report) {
  report << "  fragment  keys   ns/packet               over kernel                 over off\n";
  nlohmann::json figures;
  for (const uint32_t fragment_bytes :
       {limits::kFragmentBytesJumbo, limits::kFragmentBytesEthernet}) {
    const BenchShape shape{.workers = given_or(options.workers, kPipelineWorkers),
                           .fragment_bytes = fragment_bytes};
    figures.push_back(measure(shape, given_or(options.turns, kPipelineTurns), report));
  }
  return figures;
}

}  // namespace pbox::perf
