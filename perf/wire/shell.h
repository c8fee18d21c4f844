// Measurements of other programs, read from their output.
#pragma once

#include <string>

namespace pbox::perf {

// Runs the command line by the shell to its end, and returns its standard output. Throws
// std::runtime_error where no shell can be started; how it ends is for the reader of its words.
std::string output_of(const std::string& command);

}  // namespace pbox::perf
