// Scenario `consistency`: real problems that are trained under each consistency model, with one
// rank slowed. It reports the rate of iterations, the time to the target accuracy, and the traffic.
// This file starts the training, which is in run.py, and prints its figures.
#include <array>
#include <iomanip>
#include <sstream>
#include <stdexcept>

#include "perf/peers/program.h"
#include "perf/python.h"
#include "perf/scenario.h"

namespace pbox::perf::consistency_scenario {
namespace {

constexpr int kRunLimitMs = 3 * 3600 * 1000;

void add_options(po::options_description& options) {
  options.add_options()("problem", po::value<std::string>()->default_value("words"),
                        "words (softmax regression, languages of words), digits (CNN), mf (matrix "
                        "factorization) or lda (topics by Gibbs sampling)")(
      "workers", po::value<std::string>()->default_value("4,8"),
      "numbers of worker processes, comma-separated")(
      "slow", po::value<std::string>()->default_value("10"),
      "factors by which the last worker computes slower, comma-separated")(
      "staleness", po::value<std::string>()->default_value("3"),
      "staleness bounds of SSP, ESSP, PSSP and DPSSP, comma-separated")(
      "models", po::value<std::string>(),
      "models to measure, comma-separated; see perf/consistency/run.py --help; default: all")(
      "seconds", po::value<double>()->default_value(20), "seconds of training in each run")(
      "compute-ms", po::value<double>()->default_value(25),
      "duration of one iteration's computing in milliseconds");
}

std::vector<std::string> command_of(const po::variables_map& options) {
  const auto problem = options["problem"].as<std::string>();
  const std::string modules = problem == "digits" ? "numpy, torch, sklearn" : "numpy, scipy";
  std::vector<std::string> command{find_python(modules), PBOX_CONSISTENCY_FOLDER "/run.py",
                                   "--problem", problem};
  for (const char* name : {"workers", "slow", "staleness", "models"}) {
    if (options.count(name) == 0) continue;
    command.insert(command.end(), {std::string("--") + name, options[name].as<std::string>()});
  }
  for (const char* name : {"seconds", "compute-ms"}) {
    std::ostringstream value;
    value << options[name].as<double>();
    command.insert(command.end(), {std::string("--") + name, value.str()});
  }
  return command;
}

std::string shown(const nlohmann::json& value, int digits) {
  if (!value.is_number()) return "-";
  std::ostringstream text;
  text << std::fixed << std::setprecision(digits) << value.get<double>();
  return text.str();
}

void print_run(const nlohmann::json& run, std::ostream& report) {
  struct Column {
    nlohmann::json value;
    int width, digits;
  };
  const std::array columns{Column{run["workers"], 3, 0},
                           Column{run["slow"], 5, 0},
                           Column{run["staleness_bound"], 3, 0},
                           Column{run["iterations_per_second"], 9, 2},
                           Column{run.value("seconds_to_target", nlohmann::json()), 10, 1},
                           Column{run["final_accuracy"], 10, 4},
                           Column{run["pulls_delayed_per_iteration"], 9, 3},
                           Column{run["sync_packets_per_iteration"], 9, 1},
                           Column{run["staleness"]["mean"], 10, 2},
                           Column{run["staleness"]["variance"], 10, 2}};
  report << "  " << std::left << std::setw(11) << run["model"].get<std::string>() << std::right;
  for (const Column& column : columns) {
    report << std::setw(column.width) << shown(column.value, column.digits);
  }
  report << "\n";
}

// Returns the point with the greatest `iteration_rate_ratio`.
const nlohmann::json& headline(const nlohmann::json& points) {
  const nlohmann::json* best = &points.at(0);
  for (const auto& point : points) {
    if (point.value("iteration_rate_ratio", 0.0) > best->value("iteration_rate_ratio", 0.0)) {
      best = &point;
    }
  }
  return *best;
}

nlohmann::json run(const po::variables_map& options, std::ostream& report) {
  Program training(command_of(options));
  auto figures = nlohmann::json::parse(training.read_line(kRunLimitMs));
  training.finish();
  report << figures["problem"].get<std::string>() << ", " << figures["seconds"] << " s each\n"
         << "  model        W slow  s    rate/s  to target  accuracy  delayed  sync pk  staleness"
            "  variance\n";
  for (const auto& run : figures["runs"]) print_run(run, report);
  const nlohmann::json& best = headline(figures["points"]);
  for (const char* name :
       {"delayed_pull_ratio", "iteration_rate_ratio", "iteration_rate_ratio_lazy",
        "sync_traffic_saved", "accuracy_difference"}) {
    figures[name] = best.value(name, nlohmann::json());
    report << "  " << name << " " << shown(figures[name], 3) << "\n";
  }
  for (const auto& run : figures["runs"]) {
    if (run["workers"] != best["workers"] || run["slow"] != best["slow"]) continue;
    if (run["staleness_bound"] != best["staleness_bound"]) continue;
    figures["staleness"][run["model"].get<std::string>()] = {
        {"mean", run["staleness"]["mean"]}, {"variance", run["staleness"]["variance"]}};
  }
  return figures;
}

const ScenarioRegistration kRegistration({.name = "consistency",
                                          .summary = "real training under each consistency model,"
                                                     " with a straggler",
                                          .add_options = add_options,
                                          .run = run});

}  // namespace
}  // namespace pbox::perf::consistency_scenario
