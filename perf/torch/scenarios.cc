// Scenarios `start` and `ddp`: the backend pbox of torch.distributed against Gloo. The measurements
// are in start.py and ddp.py. This file starts them and prints their figures.
#include <iomanip>

#include "perf/peers/program.h"
#include "perf/python.h"
#include "perf/scenario.h"

namespace pbox::perf {
namespace {

constexpr int kRunLimitMs = 3600 * 1000;

void add_common_options(po::options_description& options, uint32_t turns) {
  options.add_options()("python", po::value<std::string>(),
                        "the Python to use; default: the first that has torch")(
      "turns", po::value<uint32_t>()->default_value(turns), "timed runs of each system");
}

nlohmann::json run_script(const po::variables_map& options, const std::string& script,
                          std::vector<std::string> arguments, std::ostream& report) {
  const std::string python =
      options.count("python") != 0 ? options["python"].as<std::string>() : find_python("torch");
  std::vector<std::string> command{python, PBOX_TORCH_FOLDER "/" + script, "--turns",
                                   std::to_string(options["turns"].as<uint32_t>())};
  command.insert(command.end(), arguments.begin(), arguments.end());
  Program program(command);
  auto figures = nlohmann::json::parse(program.read_line(kRunLimitMs));
  program.finish();
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

}  // namespace
}  // namespace pbox::perf
