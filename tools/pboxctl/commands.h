// The subcommands of pboxctl, each a value: its words, its options and what it does. Help, man page
// and completion are made of them, so they cannot disagree. To add one: define it in a file of its
// own, list it in commands.cc.
#pragma once

#include <boost/program_options/options_description.hpp>
#include <boost/program_options/variables_map.hpp>
#include <span>
#include <string>
#include <vector>

namespace pboxctl {

using Words = std::vector<std::string>;

// Exit status. Scripts rely on it.
inline constexpr int kDone = 0;
inline constexpr int kFailed = 1;     // a check failed, a box does not answer, there is no such job
inline constexpr int kUsage = 2;      // called wrongly, or a configuration has mistakes
inline constexpr int kDifferent = 3;  // a replay: from what was recorded, or from another

struct Command {
  const char* name;
  const char* arguments;  // after the name: "[JOB] [options]"
  const char* summary;    // of a line
  const char* text;       // what --help and the man page say
  boost::program_options::options_description (*options)();
  // `more`: what is no option of the command. Standard output is the answer, standard error says
  // what went wrong and what to do.
  int (*run)(const boost::program_options::variables_map& given, const Words& more);
  // What `more` may be; a program and its words follow "--".
  enum class More { kNone, kJob, kJobAndProgram, kBox, kFile, kSettings } more = More::kNone;
};

extern const Command kBoxes, kDoctor, kDocs, kDrain, kJobs, kMetrics, kPlan, kRecorder, kReplay,
    kRestore, kSnapshot, kSnapshots, kStragglers, kTop, kTrace, kVersion, kWorkers;

// By name; without kDocs, which is for the build.
std::span<const Command* const> commands();

// --output: is it json? A word that is neither is an options::error.
void add_output_option(boost::program_options::options_description& description);
bool wants_json(const boost::program_options::variables_map& given);

// "pboxctl NAME: what; `pboxctl NAME --help` lists all options", and kUsage.
int complain(const char* name, const std::string& what);

}  // namespace pboxctl
