// Measures the rounds of a job of two ranks while clients with keys shake hands with its box,
// without a request. Clients, ranks and box share the cores here, so there is a third state to
// compare with: the same handshakes between two ends in one process, away from the box.
#include <chrono>
#include <iomanip>
#include <sstream>

#include "perf/rack/rack.h"
#include "perf/secure/parts.h"
#include "perf/secure/programs.h"
#include "perf/turns.h"

namespace pbox::perf {
namespace {

constexpr uint32_t kHandshakeTurns = 15;
constexpr uint32_t kBlockMs = 1000;
constexpr int kHandshakesLimitMs = 60'000;
constexpr double kTail = 0.99;

// The job's rounds in one state of the machine.
struct State {
  const char* name;
  std::unique_ptr<Program> clients = nullptr;    // null: there are none
  std::vector<double> milliseconds = {};         // all rounds
  std::vector<double> medians = {}, tails = {};  // one for each turn
  uint64_t done = 0, failed = 0;
};

std::unique_ptr<Program> start_clients(const std::string& where, const KeyFolders& keys,
                                       uint32_t rate) {
  return std::make_unique<Program>(std::vector<std::string>{
      sibling_program("pbox-perf-handshakes"), where, keys.workers(seal::Suite::kGmac256),
      keys.box(), std::to_string(rate)});
}

void run_block(State& state, LoopbackSystem& job) {
  if (state.clients != nullptr) state.clients->write_line(std::to_string(kBlockMs));
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(kBlockMs);
  std::vector<double> rounds;
  do {
    rounds.push_back(measure_once(job));
  } while (std::chrono::steady_clock::now() < end);
  state.medians.push_back(median(rounds));
  state.tails.push_back(quantile(rounds, kTail));
  state.milliseconds.insert(state.milliseconds.end(), rounds.begin(), rounds.end());
  if (state.clients == nullptr) return;
  std::istringstream answer(state.clients->read_line(kHandshakesLimitMs));
  uint64_t done = 0, failed = 0;
  answer >> done >> failed;
  state.done += done;
  state.failed += failed;
}

}  // namespace

nlohmann::json measure_handshakes(const SecureOptions& options, std::ostream& report) {
  const KeyFolders keys;
  constexpr auto kSuite = seal::Suite::kGmac256;
  const LoopbackBox box = start_loopback_box(keys.box_flags(kSuite));
  LoopbackSystem job = start_on_loopback(
      "pbox", {.model = "1mib", .warmup = 20, .box = box.control, .keys = keys.workers(kSuite)});
  State states[] = {
      {.name = "none"},
      {.name = "elsewhere", .clients = start_clients("-", keys, options.handshakes_per_second)},
      {.name = "box", .clients = start_clients(box.control, keys, options.handshakes_per_second)},
  };
  const uint32_t turns = given_or(options.turns, kHandshakeTurns);
  for (uint32_t turn = 0; turn < turns; ++turn) {
    for (size_t step = 0; step < std::size(states); ++step) {
      run_block(states[(turn + step) % std::size(states)], job);
    }
  }
  report << "  handshakes   per s  failed  rounds    p50 ms    p99 ms"
            "             p50 over none             p99 over none\n";
  nlohmann::json figures;
  for (const State& state : states) {
    const double p50 = median(state.milliseconds), p99 = quantile(state.milliseconds, kTail);
    const double rate = static_cast<double>(state.done) * 1e3 / (turns * double{kBlockMs});
    report << "  " << std::left << std::setw(10) << state.name << std::right << std::fixed
           << std::setprecision(0) << std::setw(8) << rate << std::setw(8) << state.failed
           << std::setw(8) << state.milliseconds.size() << std::setprecision(2) << std::setw(10)
           << p50 << std::setw(10) << p99;
    const Spread middle = spread(ratios(state.medians, states[0].medians));
    const Spread tail = spread(ratios(state.tails, states[0].tails));
    print(middle, report);
    print(tail, report);
    report << std::endl;
    figures[state.name] = {{"handshakes_per_second", rate},
                           {"failed", state.failed},
                           {"rounds", state.milliseconds.size()},
                           {"p50_ms", p50},
                           {"p99_ms", p99},
                           {"p50_over_none", to_json(middle)},
                           {"p99_over_none", to_json(tail)}};
  }
  return figures;
}

}  // namespace pbox::perf
