// Measures exchanges of ResNet-50's gradients over loopback, where box and ranks share the cores.
// Three boxes and their jobs take turns.
#include <iomanip>

#include "perf/secure/parts.h"
#include "perf/secure/programs.h"
#include "perf/turns.h"

namespace pbox::perf {
namespace {

constexpr uint32_t kExchangeWorkers = 2;
constexpr uint32_t kExchangeTurns = 31;

}  // namespace

nlohmann::json measure_exchanges(const SecureOptions& options, std::ostream& report) {
  const KeyFolders keys;
  std::vector<LoopbackSystem> jobs;
  for (const seal::Suite suite : kSuites) {
    jobs.push_back(
        start_on_loopback("pbox", {.worker_count = given_or(options.workers, kExchangeWorkers),
                                   .warmup = 3,
                                   .box_flags = joined(keys.box_flags(suite)),
                                   .keys = keys.workers(suite)}));
  }
  const uint32_t turns = given_or(options.turns, kExchangeTurns);
  take_turns(jobs, turns, report);
  report << "  keys        ms             time over off         CPU time over off\n";
  nlohmann::json figures;
  for (size_t index = 0; index < jobs.size(); ++index) {
    const char* name = name_of(kSuites[index]);
    const Spread time = spread(ratios(jobs[index].ms, jobs[0].ms));
    const Spread cpu = spread(ratios(jobs[index].cpu_seconds, jobs[0].cpu_seconds));
    const double ms = median(jobs[index].ms);
    report << "  " << std::left << std::setw(5) << name << std::right << std::fixed
           << std::setprecision(1) << std::setw(9) << ms;
    print(time, report);
    print(cpu, report);
    report << std::endl;
    figures[name] = {{"ms", ms}, {"time_over_off", to_json(time)}, {"cpu_over_off", to_json(cpu)}};
  }
  return figures;
}

}  // namespace pbox::perf
