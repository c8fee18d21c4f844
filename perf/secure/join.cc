// Measures the time until 64 ranks have joined a job of ResNet-50's tensors. Each rank is a new
// process, as when a job starts, so with keys it also loads OpenSSL.
#include <sys/resource.h>

#include <iomanip>

#include "perf/peers/peer.h"
#include "perf/rack/rack.h"
#include "perf/secure/parts.h"
#include "perf/secure/programs.h"

namespace pbox::perf {
namespace {

constexpr uint32_t kRanks = 64;
constexpr uint32_t kJoinTurns = 9;
constexpr int kJoinLimitMs = 120'000;

struct Join {
  double milliseconds = 0;
  double cpu_seconds = 0;  // ranks and box, until the ranks have left
};

double children_cpu_seconds() {
  rusage used{};
  getrusage(RUSAGE_CHILDREN, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

Join join_once(const LoopbackBox& box, const std::string& job, uint32_t ranks,
               const std::string& keys) {
  const double before = children_cpu_seconds() + process_cpu_seconds(box.program->pid());
  std::vector<std::string> command = {sibling_program("pbox-perf-join"), box.control, job,
                                      std::to_string(ranks)};
  if (!keys.empty()) command.push_back(keys);
  Program program(command);
  Join join;
  join.milliseconds = std::stod(program.read_line(kJoinLimitMs));
  program.finish();
  join.cpu_seconds = children_cpu_seconds() + process_cpu_seconds(box.program->pid()) - before;
  return join;
}

}  // namespace

nlohmann::json measure_joins(const SecureOptions& options, std::ostream& report) {
  const KeyFolders keys;
  const uint32_t ranks = given_or(options.workers, kRanks);
  const uint32_t turns = given_or(options.turns, kJoinTurns);
  std::vector<LoopbackBox> boxes;
  for (const seal::Suite suite : kSuites) {
    boxes.push_back(start_loopback_box(keys.box_flags(suite)));
  }
  std::vector<double> milliseconds[std::size(kSuites)], cpu_seconds[std::size(kSuites)];
  for (uint32_t turn = 0; turn <= turns; ++turn) {
    for (size_t step = 0; step < std::size(kSuites); ++step) {
      const size_t index = (turn + step) % std::size(kSuites);
      const Join join = join_once(boxes[index], "perf/join-" + std::to_string(turn), ranks,
                                  keys.workers(kSuites[index]));
      if (turn == 0) continue;  // turn 0 also reads the programs from the disk
      milliseconds[index].push_back(join.milliseconds);
      cpu_seconds[index].push_back(join.cpu_seconds);
    }
  }
  report << "  ranks  keys       ms     longer than off by, ms            CPU time, s\n";
  nlohmann::json figures = {{"ranks", ranks}};
  for (size_t index = 0; index < std::size(kSuites); ++index) {
    std::vector<double> longer;
    for (uint32_t turn = 0; turn < turns; ++turn) {
      longer.push_back(milliseconds[index][turn] - milliseconds[0][turn]);
    }
    const char* name = name_of(kSuites[index]);
    report << std::setw(7) << ranks << std::setw(6) << name << std::fixed << std::setprecision(0)
           << std::setw(9) << median(milliseconds[index]);
    print(spread(longer), report, 0);
    print(spread(cpu_seconds[index]), report, 2);
    report << std::endl;
    figures[name] = {{"ms", to_json(spread(milliseconds[index]))},
                     {"longer_ms", to_json(spread(longer))},
                     {"cpu_s", to_json(spread(cpu_seconds[index]))}};
  }
  return figures;
}

}  // namespace pbox::perf
