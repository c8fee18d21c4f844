#include <algorithm>
#include <boost/program_options.hpp>
#include <iomanip>
#include <iostream>

#include "tools/pboxctl/commands.h"

namespace {

namespace options = boost::program_options;
using pboxctl::Command;

void print_help(std::ostream& out) {
  out << "Usage: pboxctl COMMAND [options]\n\n"
         "Inspects and operates PBox gradient-aggregation boxes. `pboxctl COMMAND --help` "
         "explains\n"
         "a command.\n\n"
         "Commands\n";
  for (const Command* command : pboxctl::commands()) {
    out << "  " << std::left << std::setw(12) << command->name << command->summary << '\n';
  }
  out << "\nExit status: 0 success, 1 failure, 2 wrong usage or configuration, 3 a replay "
         "differs.\n";
}

int run(const Command& command, const pboxctl::Words& words) {
  const auto description = command.options();
  // A program that the command runs follows "--".
  const bool runs = command.more == Command::More::kJobAndProgram;
  const auto end = runs ? std::find(words.begin(), words.end(), "--") : words.end();
  try {
    const auto parsed = options::command_line_parser(pboxctl::Words(words.begin(), end))
                            .options(description)
                            .allow_unregistered()
                            .run();
    options::variables_map given;
    options::store(parsed, given);
    if (given.contains("help")) {
      std::cout << "Usage: pboxctl " << command.name << ' ' << command.arguments << "\n\n"
                << command.text << "\n\n"
                << description;
      return pboxctl::kDone;
    }
    auto more = options::collect_unrecognized(parsed.options, options::include_positional);
    size_t most = command.more == Command::More::kNone ? 0 : 1;
    if (command.more == Command::More::kJobAndModel) most = 2;
    if (command.more == Command::More::kKeys) most = more.size();  // `keys` counts its words itself
    if (command.more != Command::More::kSettings) {
      const auto option = std::find_if(more.begin(), more.end(),
                                       [](const auto& word) { return word.starts_with('-'); });
      if (option != more.end()) {
        return pboxctl::complain(command.name, "unknown option " + *option);
      }
      if (more.size() > most) {
        return pboxctl::complain(command.name, "unexpected argument '" + more[most] + "'");
      }
    }
    if (end != words.end()) more.insert(more.end(), end + 1, words.end());
    return command.run(given, more);
  } catch (const options::error& error) {
    return pboxctl::complain(command.name, error.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  const pboxctl::Words words(argv + 1, argv + argc);
  if (words.empty()) {
    print_help(std::cerr);
    return pboxctl::kUsage;
  }
  if (words[0] == "--help" || words[0] == "-h" || words[0] == "help") {
    print_help(std::cout);
    return pboxctl::kDone;
  }
  if (words[0] == "--version") return run(pboxctl::kVersion, {});
  const pboxctl::Words rest(words.begin() + 1, words.end());
  for (const Command* command : pboxctl::commands()) {
    if (words[0] == command->name) return run(*command, rest);
  }
  if (words[0] == pboxctl::kDocs.name) return run(pboxctl::kDocs, rest);
  std::cerr << "pboxctl: unknown command " << words[0] << "; `pboxctl --help` lists all commands\n";
  return pboxctl::kUsage;
}
