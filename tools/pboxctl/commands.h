// The commands of pboxctl. Each is a value: its texts, its options and its function. Help, man page
// and completion are generated from these values, so they cannot disagree. To add a command, define
// it in a file of its own and list it in commands.cc.
#pragma once

#include <boost/program_options/options_description.hpp>
#include <boost/program_options/variables_map.hpp>
#include <span>
#include <string>
#include <vector>

namespace pboxctl {

using Words = std::vector<std::string>;

// Exit statuses. Scripts rely on them.
inline constexpr int kDone = 0;
inline constexpr int kFailed = 1;     // a check failed, a box does not answer, there is no such job
inline constexpr int kUsage = 2;      // wrong usage, or mistakes in a configuration
inline constexpr int kDifferent = 3;  // a replay differs from its record, or from another record

struct Command {
  const char* name;
  const char* arguments;  // shown after the name: "[JOB] [options]"
  const char* summary;    // one line
  const char* text;       // the description in --help and in the man page
  boost::program_options::options_description (*options)();
  // Runs the command and returns the exit status. `more` holds the words that are not options of
  // the command. The answer goes to standard output, errors and their remedies to standard error.
  int (*run)(const boost::program_options::variables_map& given, const Words& more);
  // The words that the command accepts besides options. A program and its words follow "--".
  enum class More {
    kNone,
    kJob,
    kJobAndModel,
    kJobAndProgram,
    kBox,
    kFile,
    kKeys,
    kSettings
  } more = More::kNone;
};

extern const Command kBoxes, kDoctor, kDocs, kDrain, kJobs, kKeys, kMetrics, kPlan, kRecorder,
    kReplay, kRestore, kSnapshot, kSnapshots, kStragglers, kSync, kTop, kTrace, kVersion, kWorkers;

// Returns all commands in the order of their names, except kDocs, which only the build uses.
std::span<const Command* const> commands();

// The first adds --output. The second returns whether --output is json, and throws options::error
// if it is neither text nor json.
void add_output_option(boost::program_options::options_description& description);
bool wants_json(const boost::program_options::variables_map& given);

// Prints "pboxctl NAME: what; `pboxctl NAME --help` lists all options" and returns kUsage.
int complain(const char* name, const std::string& what);

}  // namespace pboxctl
