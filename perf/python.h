// Finds the Python interpreter that a scenario's script needs.
#pragma once

#include <string>

#include "perf/scenario.h"

namespace pbox::perf {

// Returns the first Python that finds all the modules, which are separated by ", ". The one in PATH
// may lack them. Throws std::runtime_error if there is none.
std::string find_python(const std::string& modules);

// Adds the option --python to those of a scenario whose script needs torch.
void add_python_option(po::options_description& options);
// Returns the Python that --python names. Without the option, returns the first that finds torch.
std::string python_of(const po::variables_map& options);

}  // namespace pbox::perf
