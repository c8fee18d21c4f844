// pbox-sim --seeds N [--from S] [--json]: simulates racks of boxes and workers, one per seed, in
// simulated time and with simulated faults. A violation ends the program with status 1 and a
// command that reproduces it.
#include <unistd.h>

#include <array>
#include <boost/program_options.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/rng.h"
#include "tests/sim/congestion.h"
#include "tests/sim/goodput.h"
#include "tests/sim/scale.h"
#include "tests/sim/waiting.h"
#include "tests/sim/world.h"

namespace pbox::sim {
namespace {

namespace po = boost::program_options;

// The text that is printed if the process crashes, as it does when a check in the product fails. It
// names the current seed.
char crash_text[80] = "";

void on_crash(int signal_number) {
  [[maybe_unused]] const auto written = write(STDERR_FILENO, crash_text, std::strlen(crash_text));
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

void announce(uint64_t seed, const char* mode = "") {
  std::snprintf(crash_text, sizeof(crash_text), "pbox-sim: crashed with %s--from %llu --seeds 1\n",
                mode, static_cast<unsigned long long>(seed));
}

struct Totals {
  uint64_t seeds = 0, events = 0, simulated_ns = 0, rounds = 0, jobs_failed = 0, violations = 0;
  uint64_t digest = 0;  // combines all trace hashes
  FaultCounts faults;

  void add(const Outcome& outcome) {
    ++seeds;
    digest = Rng(digest ^ outcome.trace_hash).next();
    events += outcome.events;
    simulated_ns += outcome.simulated_ns;
    rounds += outcome.rounds;
    jobs_failed += outcome.jobs_failed;
    violations += !outcome.violation.empty();
    faults.add(outcome.faults);
  }
};

// `how`: options with which pbox-sim reproduces the violation.
void report_violation(const std::string& violation, const Options& options,
                      const std::string& how = "") {
  std::cerr << "violation: " << violation << "\n  " << to_string(options) << "\n  again: pbox-sim "
            << how << "--from " << options.seed << (how.empty() ? " --seeds 1" : "") << std::endl;
}

void run_seed(const Options& options, bool verbose, bool trace, Totals& totals) {
  announce(options.seed, options.has_levels ? "--levels " : "");
  if (verbose) std::cerr << to_string(options) << std::endl;
  Outcome outcome = World(options, trace ? &std::cerr : nullptr).run();
  if (outcome.violation.empty()) {
    constexpr bool kChecks = false;  // the first run has checked what both do
    const uint64_t again = World(options, nullptr, kChecks).run().trace_hash;
    if (again != outcome.trace_hash) outcome.violation = "the same seed ran differently";
  }
  totals.add(outcome);
  if (outcome.violation.empty()) return;
  report_violation(outcome.violation, options, options.has_levels ? "--levels --seeds 1 " : "");
}

// Returns false if there were enough seeds and some kind of fault has not occurred. A fault that
// never happens tests nothing.
bool has_every_fault(const Totals& totals) {
  constexpr uint64_t kSeedsEnough = 1'000;
  if (totals.seeds < kSeedsEnough) return true;
  bool has_all = true;
  for (size_t index = 0; index < totals.faults.values.size(); ++index) {
    if (totals.faults.values[index] > 0) continue;
    std::cerr << "no seed had the fault " << kFaultNames[index] << std::endl;
    has_all = false;
  }
  return has_all;
}

nlohmann::json report(const Totals& totals) {
  nlohmann::json faults;
  for (size_t index = 0; index < totals.faults.values.size(); ++index) {
    faults[kFaultNames[index]] = totals.faults.values[index];
  }
  return {{"seeds", totals.seeds},
          {"events", totals.events},
          {"simulated_hours", static_cast<double>(totals.simulated_ns) / 3.6e12},
          {"rounds", totals.rounds},
          {"jobs_failed_with_cause", totals.jobs_failed},
          {"faults", faults},
          {"violations", totals.violations},
          {"digest", totals.digest}};
}

void print(const nlohmann::json& figures, bool json) {
  std::cout << (json ? figures.dump() : figures.dump(2)) << std::endl;
}

int run_goodput(bool json) {
  nlohmann::json rows = nlohmann::json::array();
  bool holds = true;
  for (const Goodput& row : measure_goodput()) {
    holds = holds && row.violation.empty() && row.ratio >= row.least;
    rows.push_back({{"loss", row.loss},
                    {"window_bytes", row.window_bytes},
                    {"goodput", row.ratio},
                    {"least", row.least},
                    {"milliseconds", row.milliseconds},
                    {"correct", row.violation.empty()},
                    {"violation", row.violation}});
  }
  const nlohmann::json figures = {{"goodput", rows}, {"holds", holds}};
  print(figures, json);
  return holds ? 0 : 1;
}

int run_waiting(bool json) {
  nlohmann::json rows = nlohmann::json::array();
  bool holds = true;
  for (const Waiting& row : measure_waiting()) {
    holds = holds && row.violation.empty() && row.pulls <= row.most;
    rows.push_back({{"workers", row.workers},
                    {"chunks", row.chunks},
                    {"pulls_per_worker_and_second", row.pulls},
                    {"most", row.most},
                    {"violation", row.violation}});
  }
  const nlohmann::json figures = {{"waiting", rows}, {"holds", holds}};
  print(figures, json);
  return holds ? 0 : 1;
}

int run_congestion(const std::string& part_of_name, bool json) {
  nlohmann::json rows = nlohmann::json::array();
  bool holds = true;
  for (const Congestion& row : measure_congestion(part_of_name)) {
    holds = holds && row.holds();
    rows.push_back({{"name", row.name},
                    {"share", row.share},
                    {"least", row.least},
                    {"most", row.most},
                    {"tcp_share", row.tcp_share},
                    {"sent_again", row.sent_again},
                    {"first_round_ms", row.first_round_ms},
                    {"seconds", row.seconds},
                    {"holds", row.holds()},
                    {"violation", row.violation}});
  }
  if (rows.empty()) {
    std::cerr << "pbox-sim: no row's name contains '" << part_of_name << "'\n";
    return 2;
  }
  const nlohmann::json figures = {{"congestion", rows}, {"holds", holds}};
  print(figures, json);
  return holds ? 0 : 1;
}

nlohmann::json to_json(const ScaleStep& step) {
  return {{"simulated_seconds", step.simulated_s},
          {"control_seconds", step.control_s},
          {"messages", step.messages}};
}

int run_scale(const ScaleSize& size, bool json) {
  if (size.boxes < 3 || size.jobs == 0 || size.ranks == 0 || size.chunks == 0 ||
      size.ranks > limits::kWorkersPerJobMax) {
    throw po::error("--scale needs 3 boxes or more, a job and a chunk or more, and 1 to " +
                    std::to_string(limits::kWorkersPerJobMax) + " ranks");
  }
  const Scale scale = measure_scale(size);
  print({{"boxes", size.boxes},
         {"pipelines_per_box", kScalePipelines},
         {"jobs", size.jobs},
         {"ranks_per_job", size.ranks},
         {"chunks_per_job", size.chunks},
         {"parts_per_job", scale.parts},
         {"plan", to_json(scale.plan)},
         {"join", to_json(scale.join)},
         {"drain", to_json(scale.drain)},
         {"failover", to_json(scale.failover)},
         {"connections_per_box", scale.connections},
         {"violation", scale.violation}},
        json);
  return scale.violation.empty() ? 0 : 1;
}

// Runs seeds until this many packets have been forged.
int run_forgeries(uint64_t forgeries, uint64_t first, bool json) {
  const auto begin = std::chrono::steady_clock::now();
  Totals totals;
  Outcome all;
  for (uint64_t forged = 0, seed = first; forged < forgeries; ++seed) {
    announce(seed);
    const Options options = draw_attacked(seed);
    const Outcome outcome = World(options).run();
    totals.add(outcome);
    if (!outcome.violation.empty()) report_violation(outcome.violation, options, "--forgeries 1 ");
    for (size_t kind = 0; kind < all.forgeries.size(); ++kind) {
      all.forgeries[kind] += outcome.forgeries[kind];
    }
    all.forged_for_boxes += outcome.forged_for_boxes;
    all.forged_for_workers += outcome.forged_for_workers;
    all.key_updates += outcome.key_updates;
    forged = all.forged_for_boxes + all.forged_for_workers;
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  nlohmann::json figures = report(totals);
  for (size_t kind = 0; kind < all.forgeries.size(); ++kind) {
    figures["forgeries"][kForgeryNames[kind]] = all.forgeries[kind];
  }
  figures["forged_for_boxes"] = all.forged_for_boxes;
  figures["forged_for_workers"] = all.forged_for_workers;
  figures["key_updates"] = all.key_updates;
  figures["seconds"] = seconds.count();
  print(figures, json);
  return totals.violations == 0 && has_every_fault(totals) ? 0 : 1;
}

// Runs pbox-sim-mutants, the program with planted bugs, which is in the same folder.
int run_mutants(std::vector<std::string> arguments) {
  std::array<char, 4096> path{};
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size() - 1);
  const std::string program =
      std::string(path.data(), length > 0 ? size_t(length) : 0) + "-mutants";
  std::vector<char*> pointers;
  arguments.insert(arguments.begin(), program);
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  execv(program.c_str(), pointers.data());
  std::cerr << "pbox-sim: cannot run " << program << ": " << std::strerror(errno)
            << "; build the target pbox-sim-mutants\n";
  return 2;
}

int run(int argc, char** argv) {
  po::options_description description("pbox-sim");
  description.add_options()("help", "print this")("json", "print one JSON object as the last line")(
      "seeds", po::value<uint64_t>()->default_value(100), "number of seeds")(
      "from", po::value<uint64_t>()->default_value(1), "the first seed")(
      "goodput", "instead, measure the cost of packet loss")(
      "waiting", "instead, measure how often workers ask while one rank is silent")(
      "congestion", "instead, measure how a job shares a cable with a TCP flow")(
      "rows", po::value<std::string>()->default_value(""),
      "only those rows of --congestion whose name contains this text")(
      "levels", "instead, simulate racks whose boxes send their sums to an upper box")(
      "forgeries", po::value<uint64_t>(),
      "instead, forge this many packets, beginning with the first seed")(
      "scale",
      "instead, measure how long jobs of many boxes, ranks and chunks take to begin, and "
      "to leave a box that is drained or lost")("boxes", po::value<uint32_t>()->default_value(16),
                                                "with --scale: boxes of 4 pipelines")(
      "jobs", po::value<uint32_t>()->default_value(1), "with --scale: jobs")(
      "ranks", po::value<uint32_t>()->default_value(16), "with --scale: ranks of each job")(
      "chunks", po::value<uint32_t>()->default_value(256), "with --scale: chunks of each job")(
      "mutants", "instead, count the seeds until each planted bug is seen")(
      "canary", "instead, plant one bug; the program fails if a seed shows it")(
      "verbose", "print the options of each seed")("trace", "print all events");
  po::variables_map options;
  po::store(po::command_line_parser(argc, argv)
                .options(description)
                .positional(po::positional_options_description())
                .run(),
            options);
  po::notify(options);
  if (options.count("help") != 0) {
    std::cout << description;
    return 0;
  }
  const bool json = options.count("json") != 0;
  if (options.count("goodput") != 0) return run_goodput(json);
  if (options.count("waiting") != 0) return run_waiting(json);
  if (options.count("congestion") != 0) {
    return run_congestion(options["rows"].as<std::string>(), json);
  }
  if (options.count("scale") != 0) {
    return run_scale({.boxes = options["boxes"].as<uint32_t>(),
                      .jobs = options["jobs"].as<uint32_t>(),
                      .ranks = options["ranks"].as<uint32_t>(),
                      .chunks = options["chunks"].as<uint32_t>()},
                     json);
  }
  if (options.count("forgeries") != 0) {
    return run_forgeries(options["forgeries"].as<uint64_t>(), options["from"].as<uint64_t>(), json);
  }
  if (options.count("mutants") != 0 || options.count("canary") != 0) {
    std::vector<std::string> arguments;
    if (json) arguments.emplace_back("--json");
    if (options.count("canary") != 0) arguments.emplace_back("--canary");
    return run_mutants(arguments);
  }
  Totals totals;
  const uint64_t first = options["from"].as<uint64_t>();
  const bool has_levels = options.count("levels") != 0;
  for (uint64_t index = 0; index < options["seeds"].as<uint64_t>(); ++index) {
    const uint64_t seed = first + index;
    run_seed(has_levels ? draw_levels(seed) : draw(seed), options.count("verbose") != 0,
             options.count("trace") != 0, totals);
  }
  const nlohmann::json figures = report(totals);
  print(figures, json);
  return totals.violations == 0 && (has_levels || has_every_fault(totals)) ? 0 : 1;
}

}  // namespace
}  // namespace pbox::sim

int main(int argc, char** argv) {
  signal(SIGABRT, pbox::sim::on_crash);
  signal(SIGSEGV, pbox::sim::on_crash);
  try {
    return pbox::sim::run(argc, argv);
  } catch (const boost::program_options::error& error) {
    std::cerr << "pbox-sim: " << error.what() << " (see --help)\n";
    return 2;
  }
}
