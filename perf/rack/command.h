// Programs that configure the system and end at once: ip and tc.
#pragma once

#include <string>
#include <vector>

namespace pbox::perf {

// Runs a program to its end with `input` as its standard input, in the network namespace that the
// descriptor `network` names. Throws std::runtime_error with what it said on standard error unless
// it exits with 0; that names the program's package where it is missing.
void run_command(const std::vector<std::string>& command, const std::string& input, int network);

}  // namespace pbox::perf
