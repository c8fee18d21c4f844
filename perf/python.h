// The Python that a scenario's script needs.
#pragma once

#include <string>

namespace pbox::perf {

// Returns the first Python that finds all the modules, which are separated by ", ". The one in PATH
// may lack them. Throws std::runtime_error if there is none.
std::string find_python(const std::string& modules);

}  // namespace pbox::perf
