// Scenario `idle`: the share of a core that a pboxd uses while it has nothing to do. The box has
// its default options, so it polls adaptively. It is measured without jobs, while it is scraped
// once a second, and with a job whose ranks are idle.
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "perf/peers/launch.h"
#include "perf/peers/program.h"
#include "perf/scenario.h"

namespace pbox::perf::idle_scenario {
namespace {

constexpr int kStartLimitMs = 30'000;

std::string folder() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
}

pid_t child_named(pid_t parent, const std::string& name) {
  const std::string of_parent = "/proc/" + std::to_string(parent);
  std::ifstream children(of_parent + "/task/" + std::to_string(parent) + "/children");
  for (pid_t child = 0; children >> child;) {
    std::string found;
    std::getline(std::ifstream("/proc/" + std::to_string(child) + "/comm") >> std::ws, found);
    if (found == name) return child;
  }
  throw std::runtime_error("process " + std::to_string(parent) + " has no child named " + name);
}

// Returns the CPU time of all threads since the start, in seconds.
double cpu_seconds(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  std::istringstream fields(text.substr(text.rfind(')') + 2));
  std::string skipped;
  for (int field = 3; field < 14; ++field) fields >> skipped;
  double user = 0, system = 0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

std::string after(const std::string& text, const std::string& key) {
  const size_t at = text.find(key);
  if (at == std::string::npos)
    throw std::runtime_error("pboxd did not print '" + key + "': " + text);
  return text.substr(at + key.size(), text.find(' ', at) - at - key.size());
}

// Returns the share of one core that the box uses for `seconds`. Scrapes the box once a second if
// `scraped` is the address of its admin port.
double share(pid_t box, double seconds, const std::string& scraped) {
  const double before = cpu_seconds(box);
  const auto begin = std::chrono::steady_clock::now();
  const auto passed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  while (passed() < seconds) {
    std::this_thread::sleep_for(std::chrono::seconds(1));
    if (scraped.empty()) continue;
    Program scrape({"curl", "-sS", "-o", "/dev/null", "http://" + scraped + "/metrics"});
    scrape.finish();
  }
  return (cpu_seconds(box) - before) / passed();
}

void add_options(po::options_description& options) {
  options.add_options()("seconds", po::value<double>()->default_value(20),
                        "duration of the measurement in each state");
}

nlohmann::json run(const po::variables_map& options, std::ostream& report) {
  const double seconds = options["seconds"].as<double>();
  Program box({folder() + "/pboxd", "--control.port=0", "--admin.port=0", "--data.port_first=0",
               "--cluster.state_directory=none", "--snapshots.directory=none",
               "--log.level=error"});
  const std::string ready = box.read_line(kStartLimitMs);
  const std::string admin = after(ready, "admin=");
  nlohmann::json figures;
  report << "share of one core that an idle box uses\n";
  const auto tell = [&](const char* key, const char* words, double of_core) {
    figures[key] = of_core;
    report << "  " << std::left << std::setw(44) << words << std::right << std::fixed
           << std::setprecision(4) << of_core << std::endl;
  };
  std::this_thread::sleep_for(std::chrono::seconds(1));  // until startup is over
  tell("alone", "alone", share(box.pid(), seconds, ""));
  tell("scraped", "scraped once a second", share(box.pid(), seconds, admin));
  box.finish();

  // The ranks exchange once and are then idle.
  const auto command = peer_command("pbox", {.worker_count = 4}, folder());
  if (!command) throw std::runtime_error(command.error().message);
  Program job(*command);
  job.read_line(kStartLimitMs);
  job.write_line("run");
  job.read_line(kStartLimitMs);
  const pid_t of_job = child_named(job.pid(), "pboxd");
  std::this_thread::sleep_for(std::chrono::seconds(1));
  tell("with_job", "with a job of four idle ranks", share(of_job, seconds, ""));
  return figures;
}

const ScenarioRegistration kRegistration({.name = "idle",
                                          .summary = "CPU time that an idle box uses",
                                          .add_options = add_options,
                                          .run = run});

}  // namespace
}  // namespace pbox::perf::idle_scenario
