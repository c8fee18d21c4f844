#include <iomanip>
#include <iostream>

#include "tools/pboxctl/commands.h"

namespace {

struct Command {
  const char* name;
  const char* help;
  int (*run)(const pboxctl::Words& words);
};

constexpr Command kCommands[] = {
    {"boxes", "list the boxes of a cluster, and which one leads", pboxctl::boxes},
    {"doctor", "find out why nothing flows between workers and a box, and what to do",
     pboxctl::doctor},
    {"plan", "show which cores, NICs and memory a box would use, and why", pboxctl::plan},
    {"stragglers", "say who is late: now, how often, by how much, where", pboxctl::stragglers},
};

void print_help(std::ostream& out) {
  out << "Usage: pboxctl COMMAND [options]\n\n"
         "Looks after PBox gradient-aggregation boxes. `pboxctl COMMAND --help` says more.\n\n"
         "Commands\n";
  for (const auto& command : kCommands) {
    out << "  " << std::left << std::setw(12) << command.name << command.help << '\n';
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
  for (const auto& command : kCommands) {
    if (words[0] == command.name) return command.run({words.begin() + 1, words.end()});
  }
  std::cerr << "pboxctl: no command " << words[0] << "; `pboxctl --help` lists all\n";
  return pboxctl::kUsage;
}
