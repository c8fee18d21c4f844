// Runs short programs that configure the system: ip and tc.
#pragma once

#include <string>
#include <vector>

namespace pbox::perf {

// Runs a program to its end with `input` as its standard input, in the network namespace that the
// descriptor `network` refers to. Throws std::runtime_error with the program's output if it does
// not exit with 0. If the program is missing, the error says which package to install.
void run_command(const std::vector<std::string>& command, const std::string& input, int network);

}  // namespace pbox::perf
