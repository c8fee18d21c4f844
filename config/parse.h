// Turns command line and file into a Config, and back. fields.cc alone defines the keys, their
// help, their bounds, and whether they may change at run time.
//
//   const auto outcome = config::parse(argc, argv);
//   for (const auto& error : outcome.errors) std::cerr << error << '\n';
//   if (!outcome.errors.empty()) return 2;
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/config.h"

namespace pbox::config {

enum class Action { kRun, kHelp, kVersion, kCheck, kPrint };

struct ParseOutcome {
  Action action = Action::kRun;
  std::optional<Config> config;     // set unless there are errors or the action is kHelp, kVersion
  std::vector<std::string> errors;  // all errors, each with key, value and remedy
  std::string file;                 // the file that was read; empty: none
};

// Reads the flags, and the file they name or kDefaultPath if that exists; a flag wins over the
// file. Never throws, never prints.
ParseOutcome parse(int argc, const char* const* argv);
ParseOutcome parse_file(const std::string& path);
ParseOutcome parse_text(const std::string& text);  // the text of a file

// Returns the text of a file that parses back to the same Config.
std::string print(const Config& config);

// Returns the text of --help; `program` is the name to show.
std::string usage(const std::string& program);

// The changes of a reload that take effect in a running box. On SIGHUP the box calls parse(argc,
// argv) again, so flags still win over the file.
struct ReloadOutcome {
  std::optional<Config> config;            // `running` with the changes applied; unset on errors
  std::vector<std::string> applied;        // "log.level: info -> debug"
  std::vector<std::string> needs_restart;  // in the same form, changes that wait for a restart
  std::vector<std::string> errors;
};
ReloadOutcome reload(const Config& running, const ParseOutcome& fresh);

// Checks each key's bounds and the rules that tie keys together. Returns all errors; empty: valid.
std::vector<std::string> validate(const Config& config);

}  // namespace pbox::config
