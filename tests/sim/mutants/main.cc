// pbox-sim-mutants [--json]: plants each bug of mutants.toml in turn and counts the seeds until the
// simulator sees it. Ends with status 1 if a bug stays unseen.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/program_options.hpp>
#include <csignal>
#include <cstring>
#include <iostream>
#include <map>
#include <new>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "tests/sim/mutants/mutant.h"
#include "tests/sim/world.h"

namespace pbox::sim {
namespace {

namespace po = boost::program_options;

struct Mutant {
  const char* name;
  const char* about;
};
constexpr Mutant kMutants[] = {
#include "tests/sim/mutants/mutants.inc"
};

// A planted bug may send product code into an endless loop.
constexpr unsigned kSeedSecondsMax = 60;

// Written by the process that runs the seeds. If the process crashes, the bug counts as seen.
struct Report {
  uint64_t seed = 0;
  bool seen = false;
  char text[240] = "";
};

void look_for(int number, uint64_t seeds_max, Report& report) {
  mutant_at_hand = number;
  for (uint64_t seed = 1; seed <= seeds_max; ++seed) {
    report.seed = seed;
    alarm(kSeedSecondsMax);
    const Outcome outcome = World(draw(seed)).run();
    if (outcome.violation.empty()) continue;
    std::strncpy(report.text, outcome.violation.c_str(), sizeof(report.text) - 1);
    report.seen = true;
    return;
  }
}

class Audit {
 public:
  Audit() {
    void* memory =
        mmap(nullptr, sizeof(Reports), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    PBOX_CHECK(memory != MAP_FAILED);
    reports_ = new (memory) Reports;
  }

  void run(const std::vector<int>& numbers, uint64_t seeds_max, size_t processes_max) {
    std::map<pid_t, int> running;
    for (const int number : numbers) {
      if (running.size() >= processes_max) finish_one(running);
      const pid_t child = fork();
      PBOX_CHECK(child >= 0);
      if (child == 0) {
        // Error output of failed checks and sanitizers is expected here.
        [[maybe_unused]] const auto* closed = freopen("/dev/null", "w", stderr);
        look_for(number, seeds_max, report(number));
        _exit(0);
      }
      running[child] = number;
    }
    while (!running.empty()) finish_one(running);
  }

  Report& report(int number) { return (*reports_)[static_cast<size_t>(number - 1)]; }

 private:
  using Reports = std::array<Report, std::size(kMutants)>;

  void finish_one(std::map<pid_t, int>& running) {
    int status = 0;
    const pid_t child = wait(&status);
    PBOX_CHECK(child > 0);
    const int number = running.at(child);
    running.erase(child);
    if (WIFSIGNALED(status)) note_crash(number, WTERMSIG(status));
    const Report& report = this->report(number);
    std::cerr << (report.seen ? "seen after " : "NOT SEEN in ") << report.seed
              << " seeds: " << kMutants[number - 1].name << ": " << report.text << std::endl;
  }

  void note_crash(int number, int signal_number) {
    Report& crashed = report(number);
    crashed.seen = true;
    const char* how = signal_number == SIGALRM ? "it never ended" : strsignal(signal_number);
    std::snprintf(crashed.text, sizeof(crashed.text), "crash: %s", how);
  }

  Reports* reports_;
};

int run(int argc, char** argv) {
  po::options_description description("pbox-sim-mutants");
  description.add_options()("help", "print this")("json", "print one JSON object as the last line")(
      "seeds", po::value<uint64_t>()->default_value(10'000), "within which each must be seen")(
      "only", po::value<std::string>(), "name of one mutant")("canary", "the first one alone")(
      "processes", po::value<size_t>()->default_value(2), "at a time");
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
  const bool canary = options.count("canary") != 0;
  std::vector<int> numbers;
  for (size_t index = 0; index < std::size(kMutants); ++index) {
    const bool wanted = canary ? index == 0
                               : options.count("only") == 0 ||
                                     options["only"].as<std::string>() == kMutants[index].name;
    if (wanted) numbers.push_back(static_cast<int>(index + 1));
  }
  Audit audit;
  audit.run(numbers, options["seeds"].as<uint64_t>(), options["processes"].as<size_t>());
  size_t caught = 0;
  nlohmann::json mutants = nlohmann::json::array();
  for (const int number : numbers) {
    const Mutant& mutant = kMutants[number - 1];
    const Report& report = audit.report(number);
    caught += report.seen;
    mutants.push_back({{"name", mutant.name},
                       {"about", mutant.about},
                       {"caught", report.seen},
                       {"seeds", report.seed},
                       {"by", report.text}});
  }
  const nlohmann::json figures = {
      {"planted", numbers.size()}, {"caught", caught}, {"mutants", mutants}};
  std::cout << (options.count("json") != 0 ? figures.dump() : figures.dump(2)) << std::endl;
  // The canary must be seen, and being seen fails the run, which proves that a violation does so.
  if (canary) return caught == 1 ? 1 : 0;
  return caught == numbers.size() && caught > 0 ? 0 : 1;
}

}  // namespace
}  // namespace pbox::sim

int main(int argc, char** argv) {
  try {
    return pbox::sim::run(argc, argv);
  } catch (const boost::program_options::error& error) {
    std::cerr << "pbox-sim-mutants: " << error.what() << " (see --help)\n";
    return 2;
  }
}
