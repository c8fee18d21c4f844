// Runs other programs that measure, and reads their output.
#pragma once

#include <string>

namespace pbox::perf {

// Runs the command line in a shell to its end, and returns its standard output. Throws
// std::runtime_error if no shell can be started. The exit status is ignored, so the caller must
// check the output.
std::string output_of(const std::string& command);

}  // namespace pbox::perf
