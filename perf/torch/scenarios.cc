// Scenarios `start` and `ddp`: the backend pbox of torch.distributed against Gloo. Scenario
// `accuracy`: training with compressed gradients. The measurements are in start.py, ddp.py and
// accuracy.py. This file starts them and prints their figures.
#include <iomanip>

#include "perf/peers/program.h"
#include "perf/python.h"
#include "perf/scenario.h"

namespace pbox::perf {
namespace {

constexpr int kRunLimitMs = 3600 * 1000;

void add_common_options(po::options_description& options, uint32_t turns) {
  add_python_option(options);
  options.add_options()("turns", po::value<uint32_t>()->default_value(turns),
                        "timed runs of each system");
}

nlohmann::json figures_of(const po::variables_map& options, const std::string& script,
                          const std::vector<std::string>& arguments) {
  std::vector<std::string> command{python_of(options), PBOX_TORCH_FOLDER "/" + script};
  command.insert(command.end(), arguments.begin(), arguments.end());
  Program program(command);
  auto figures = nlohmann::json::parse(program.read_line(kRunLimitMs));
  program.finish();
  return figures;
}

nlohmann::json run_script(const po::variables_map& options, const std::string& script,
                          std::vector<std::string> arguments, std::ostream& report) {
  arguments.insert(arguments.begin(), {"--turns", std::to_string(options["turns"].as<uint32_t>())});
  auto figures = figures_of(options, script, arguments);
  report << "torch " << figures["torch"].get<std::string>() << "\n"
         << "  system      ranks   median ms   CPU s   time over Gloo's\n"
         << std::fixed;
  for (const auto& run : figures["runs"]) {
    report << "  " << std::left << std::setw(10) << run["system"].get<std::string>() << std::right
           << std::setw(7) << run["ranks"] << std::setw(12) << std::setprecision(0)
           << run["ms"].get<double>() << std::setw(8) << std::setprecision(2)
           << run["cpu_s"].get<double>() << std::setw(11);
    run.contains("over_gloo") ? report << run["over_gloo"].get<double>() : report << "-";
    report << "\n";
  }
  return figures;
}

void add_start_options(po::options_description& options) {
  add_common_options(options, 5);
  options.add_options()("worlds", po::value<std::string>()->default_value("2,64"),
                        "numbers of ranks, comma-separated");
}

nlohmann::json run_start(const po::variables_map& options, std::ostream& report) {
  return run_script(options, "start.py", {"--worlds", options["worlds"].as<std::string>()}, report);
}

void add_ddp_options(po::options_description& options) {
  add_common_options(options, 21);
  options.add_options()("workers", po::value<uint32_t>()->default_value(2), "number of ranks");
}

nlohmann::json run_ddp(const po::variables_map& options, std::ostream& report) {
  return run_script(options, "ddp.py",
                    {"--workers", std::to_string(options["workers"].as<uint32_t>())}, report);
}

void add_accuracy_options(po::options_description& options) {
  add_python_option(options);
  options.add_options()("workers", po::value<uint32_t>()->default_value(4), "number of ranks")(
      "seeds", po::value<uint32_t>()->default_value(5), "trainings of each system")(
      "problems", po::value<std::string>()->default_value("digits,text,words"),
      "digits (the demo's CNN), text (a small transformer) and words (sparse gradients), "
      "comma-separated")("systems", po::value<std::string>(),
                         "names from the table, comma-separated; default: all");
}

nlohmann::json run_accuracy(const po::variables_map& options, std::ostream& report) {
  std::vector<std::string> arguments = {
      "--workers",  std::to_string(options["workers"].as<uint32_t>()),
      "--seeds",    std::to_string(options["seeds"].as<uint32_t>()),
      "--problems", options["problems"].as<std::string>()};
  if (options.count("systems") > 0) {
    arguments.insert(arguments.end(), {"--systems", options["systems"].as<std::string>()});
  }
  auto figures = figures_of(options, "accuracy.py", arguments);
  report << "torch " << figures["torch"].get<std::string>() << "\n"
         << "  problem  system                  accuracy %   least    most    loss   KB a step"
            "   error\n"
         << std::fixed;
  for (const auto& run : figures["runs"]) {
    report << "  " << std::left << std::setw(9) << run["problem"].get<std::string>()
           << std::setw(23) << run["system"].get<std::string>() << std::right
           << std::setprecision(2) << std::setw(11) << 100 * run["accuracy"].get<double>()
           << std::setw(8) << 100 * run["least"].get<double>() << std::setw(8)
           << 100 * run["most"].get<double>() << std::setprecision(4) << std::setw(9)
           << run["loss"].get<double>() << std::setprecision(0) << std::setw(11);
    run.contains("bytes_per_step") ? report << run["bytes_per_step"].get<double>() / 1e3
                                   : report << "-";
    report << std::setprecision(4) << std::setw(9);
    run.contains("normalised_error") ? report << run["normalised_error"].get<double>()
                                     : report << "-";
    report << "\n";
  }
  return figures;
}

const ScenarioRegistration kStart(
    {.name = "start",
     .summary = "time from init_process_group to the first result, compared with Gloo",
     .add_options = add_start_options,
     .run = run_start});
const ScenarioRegistration kDdp(
    {.name = "ddp",
     .summary = "steps of DistributedDataParallel with large buckets, compared with Gloo",
     .add_options = add_ddp_options,
     .run = run_ddp});
const ScenarioRegistration kAccuracy(
    {.name = "accuracy",
     .summary = "training with gradients as f32, bf16, q8, q4, by PowerSGD and with DiLoCo",
     .add_options = add_accuracy_options,
     .run = run_accuracy});

}  // namespace
}  // namespace pbox::perf
