// pbox-sim-mutants [--json]: plants each bug of mutants.toml in turn and counts the seeds until the
// invariant that the table names for it is violated. The same seed without the bug must pass, which
// shows that the bug causes the violation. Ends with status 1 if a bug is not caught.
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <map>
#include <new>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/check.h"
#include "tests/sim/mutants/mutant.h"
#include "tests/sim/world.h"

namespace pbox::sim {
namespace {

namespace po = boost::program_options;

struct Mutant {
  const char* name;
  const char* about;
  const char* by;  // texts of its own invariant, separated by '|': the violation must contain one
  bool is_short;   // found within few seeds: tools/test plants it each time
  uint64_t from;   // the first seed to try
  bool in_levels;  // planted in seeds of two levels
};
constexpr Mutant kMutants[] = {
#include "tests/sim/mutants/mutants.inc"
};

// Limit for a seed, because a planted bug may send product code into an endless loop. It is a limit
// of processor time, because the machine may be busy.
constexpr int kSeedSecondsMax = 30;
// The search for a bug ends after this many crashes, because each costs a new process.
constexpr int kCrashesMax = 20;
constexpr size_t kTextBytes = 400;

// Shared memory that the process that runs the seeds writes, and its parent once that process has
// ended.
struct Report {
  uint64_t seed = 0;  // the last seed that began
  bool seen = false;
  bool is_over = false;  // no more seeds
  int crashes = 0;
  char text[kTextBytes] = "";   // the violation that counts, or why the search ended
  char other[kTextBytes] = "";  // the first violation of another invariant
};

void write_text(char (&to)[kTextBytes], const std::string& text) {
  std::snprintf(to, kTextBytes, "%s", text.c_str());
}

bool is_own(int number, const std::string& text) {
  std::istringstream forms(kMutants[number - 1].by);
  for (std::string form; std::getline(forms, form, '|');) {
    if (text.find(form) != std::string::npos) return true;
  }
  return false;
}

// Limits the processor time that this process takes from now on; 0 removes the limit.
void limit_time(int seconds) {
  const itimerval limit{.it_interval = {}, .it_value = {.tv_sec = seconds, .tv_usec = 0}};
  PBOX_CHECK(setitimer(ITIMER_VIRTUAL, &limit, nullptr) == 0);
}

// Returns what the seed draws for the bug `number`.
Options options_of(uint64_t seed, int number) {
  return kMutants[number - 1].in_levels ? draw_levels(seed) : draw(seed);
}

// Returns what the seed violates, with the bug or without it.
std::string violation_of(uint64_t seed, int number, bool is_planted) {
  mutant_at_hand = is_planted ? number : 0;
  limit_time(kSeedSecondsMax);
  std::string violation = World(options_of(seed, number)).run().violation;
  limit_time(0);
  return violation;
}

// The texts that a seed's options must contain to be tried.
std::vector<std::string> wanted_options;

bool is_wanted(uint64_t seed, int number) {
  if (wanted_options.empty()) return true;
  const std::string options = to_string(options_of(seed, number));
  return std::all_of(
      wanted_options.begin(), wanted_options.end(),
      [&options](const std::string& text) { return options.find(text) != std::string::npos; });
}

// Ends the search with a violation of the bug's own invariant.
void conclude(uint64_t seed, int number, const std::string& text, Report& report) {
  const std::string without = violation_of(seed, number, false);
  report.is_over = true;
  report.seen = without.empty();
  write_text(report.text, without.empty() ? text : "seen without the bug too: " + without);
}

void look_for(int number, uint64_t from, uint64_t last, Report& report) {
  for (uint64_t seed = from; seed <= last; ++seed) {
    report.seed = seed;
    if (!is_wanted(seed, number)) continue;
    const std::string violation = violation_of(seed, number, true);
    if (violation.empty()) continue;
    if (is_own(number, violation)) return conclude(seed, number, violation, report);
    if (report.other[0] == '\0') write_text(report.other, violation);
  }
  report.is_over = true;
}

class Audit {
 public:
  Audit() {
    void* memory =
        mmap(nullptr, sizeof(Reports), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    PBOX_CHECK(memory != MAP_FAILED);
    reports_ = new (memory) Reports;
  }

  // `from`: the first seed to try; 0 selects the one that the table names.
  void run(const std::vector<int>& numbers, uint64_t from, uint64_t seeds_max,
           size_t processes_max) {
    from_ = from;
    seeds_max_ = seeds_max;
    for (const int number : numbers) {
      if (running_.size() >= processes_max) finish_one();
      report(number).seed = seeds_before(number);
      start(number);
    }
    while (!running_.empty()) finish_one();
  }

  Report& report(int number) { return (*reports_)[static_cast<size_t>(number - 1)]; }
  // Returns the number of seeds that were tried with the bug.
  uint64_t seeds(int number) { return report(number).seed - seeds_before(number); }

 private:
  using Reports = std::array<Report, std::size(kMutants)>;
  struct Search {
    int number;
    FILE* errors;  // the text of a failed check
  };

  uint64_t seeds_before(int number) const {
    return (from_ != 0 ? from_ : kMutants[number - 1].from) - 1;
  }

  // Starts a process that continues with the seed after the last one that began.
  void start(int number) {
    FILE* errors = std::tmpfile();
    PBOX_CHECK(errors != nullptr);
    const pid_t child = fork();
    PBOX_CHECK(child >= 0);
    if (child == 0) {
      dup2(fileno(errors), STDERR_FILENO);
      const uint64_t last = seeds_before(number) + seeds_max_;
      look_for(number, report(number).seed + 1, last, report(number));
      _exit(0);
    }
    running_.emplace(child, Search{number, errors});
  }

  void finish_one() {
    int status = 0;
    const pid_t child = wait(&status);
    PBOX_CHECK(child > 0);
    const Search search = running_.at(child);
    running_.erase(child);
    if (WIFSIGNALED(status)) note_crash(search, WTERMSIG(status));
    std::fclose(search.errors);
    const Report& report = this->report(search.number);
    if (!report.is_over) return start(search.number);
    std::cerr << (report.seen ? "seen after " : "NOT SEEN in ") << seeds(search.number)
              << " seeds: " << kMutants[search.number - 1].name << ": " << report.text;
    if (!report.seen && report.other[0] != '\0') std::cerr << " (but: " << report.other << ")";
    std::cerr << std::endl;
    if (!report.seen && report.text[0] == '\0') print_advice(search.number);
  }

  // Prints how to find a seed that shows the bug. Called if none of the tried seeds has shown it.
  void print_advice(int number) {
    const Mutant& mutant = kMutants[number - 1];
    uint64_t next = report(number).seed + 1;
    if (from_ == 0 && mutant.from > 1) {
      next = 1;
      std::cerr << "  mutants.toml says that seeds from " << mutant.from
                << " on show it. Seeds draw something else after a change of the draws.\n";
    }
    std::cerr
        << "  To look for another seed: pbox-sim-mutants --only " << mutant.name << " --from "
        << next << " --seeds 100000\n"
        << "  Name it as `from` in mutants.toml. docs/testing.md, \"Planted bugs\", says more."
        << std::endl;
  }

  // A failed check of the product counts if it is the one that the table names. A seed that never
  // ended counts only if the table says so, and a process that was killed never counts.
  void note_crash(const Search& search, int signal_number) {
    Report& crashed = report(search.number);
    std::string text = "crash: " + std::string(strsignal(signal_number)) + last_line(search.errors);
    if (signal_number == SIGVTALRM) text = "it never ended";
    if (signal_number == SIGKILL) {
      crashed.is_over = true;
      write_text(crashed.text, "the process was killed: memory may have run out");
    } else if (is_own(search.number, text)) {
      const pid_t child = fork();  // without the bug the seed must pass
      PBOX_CHECK(child >= 0);
      if (child == 0) {
        conclude(crashed.seed, search.number, text, crashed);
        _exit(0);
      }
      waitpid(child, nullptr, 0);
      if (!crashed.is_over) write_text(crashed.text, "seen without the bug too: " + text);
      crashed.is_over = true;
    } else {
      if (crashed.other[0] == '\0') write_text(crashed.other, text);
      crashed.is_over = ++crashed.crashes > kCrashesMax;
    }
  }

  // Returns ": " and the last line that a process printed; empty if it printed nothing.
  static std::string last_line(FILE* errors) {
    std::rewind(errors);
    std::string last;
    char line[1024];
    while (std::fgets(line, sizeof(line), errors) != nullptr) last = std::string(": ") + line;
    while (last.ends_with('\n')) last.pop_back();
    return last;
  }

  Reports* reports_;
  uint64_t from_ = 0, seeds_max_ = 0;
  std::map<pid_t, Search> running_;
};

// Prints the events of a seed with the bug, and what it violates. `from`: see Audit::run().
void trace(int number, uint64_t from) {
  const uint64_t seed = from != 0 ? from : kMutants[number - 1].from;
  mutant_at_hand = number;
  std::cerr << "violation: " << World(options_of(seed, number), &std::cerr).run().violation
            << std::endl;
}

// Returns the numbers of the mutants that the options ask for.
std::vector<int> numbers_of(const po::variables_map& options) {
  std::vector<int> numbers;
  for (size_t index = 0; index < std::size(kMutants); ++index) {
    const Mutant& mutant = kMutants[index];
    bool wanted = options.count("canary") == 0 || index == 0;
    if (options.count("only") != 0) wanted = options["only"].as<std::string>() == mutant.name;
    if (options.count("short") != 0) wanted = wanted && mutant.is_short;
    if (wanted) numbers.push_back(static_cast<int>(index + 1));
  }
  return numbers;
}

int run(int argc, char** argv) {
  po::options_description description("pbox-sim-mutants");
  description.add_options()("help", "print this")("json", "print one JSON object as the last line")(
      "seeds", po::value<uint64_t>()->default_value(10'000),
      "number of seeds within which each bug must be seen")(
      "from", po::value<uint64_t>()->default_value(0),
      "first seed to try; 0: the one that the table names, or 1")(
      "only", po::value<std::string>(), "plant only the mutant of this name")(
      "where", po::value(&wanted_options)->composing(),
      "try only seeds whose options contain this text, for example COPIED; pbox-sim --verbose "
      "prints them; repeatable")(
      "trace", "with --only: print the events of the first seed with the bug, and end")(
      "short", "plant only the bugs that tools/test plants by default")(
      "canary", "plant only the first bug")("processes", po::value<size_t>()->default_value(2),
                                            "number of processes at a time");
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
  const std::vector<int> numbers = numbers_of(options);
  if (options.count("trace") != 0) {
    for (const int number : numbers) trace(number, options["from"].as<uint64_t>());
    return 0;
  }
  Audit audit;
  audit.run(numbers, options["from"].as<uint64_t>(), options["seeds"].as<uint64_t>(),
            options["processes"].as<size_t>());
  size_t caught = 0;
  nlohmann::json mutants = nlohmann::json::array();
  for (const int number : numbers) {
    const Mutant& mutant = kMutants[number - 1];
    const Report& report = audit.report(number);
    caught += report.seen;
    mutants.push_back({{"name", mutant.name},
                       {"about", mutant.about},
                       {"caught", report.seen},
                       {"seeds", audit.seeds(number)},
                       {"seed", report.seed},
                       {"by", report.seen ? report.text : ""},
                       {"other", report.other}});
  }
  const nlohmann::json figures = {
      {"planted", numbers.size()}, {"caught", caught}, {"mutants", mutants}};
  std::cout << (options.count("json") != 0 ? figures.dump() : figures.dump(2)) << std::endl;
  // The canary must be seen. Being seen fails the run, which proves that a violation fails a run.
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
