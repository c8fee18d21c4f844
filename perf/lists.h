// Values of options that are lists.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pbox::perf {

// Returns the entries of a list that are separated by commas.
std::vector<std::string> entries_of(const std::string& list);

// Returns the numbers of such a list. Throws std::runtime_error that names the option if the list
// is empty, or if an entry is not a number in [least, most].
std::vector<uint32_t> numbers_of(const std::string& option, const std::string& list, uint32_t least,
                                 uint32_t most);

}  // namespace pbox::perf
