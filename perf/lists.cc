#include "perf/lists.h"

#include <charconv>
#include <sstream>
#include <stdexcept>

namespace pbox::perf {

std::vector<std::string> entries_of(const std::string& list) {
  std::vector<std::string> entries;
  std::istringstream text(list);
  for (std::string entry; std::getline(text, entry, ',');) entries.push_back(entry);
  return entries;
}

std::vector<uint32_t> numbers_of(const std::string& option, const std::string& list, uint32_t least,
                                 uint32_t most) {
  const std::string range = "numbers from " + std::to_string(least) + " to " +
                            std::to_string(most) + ", separated by commas";
  std::vector<uint32_t> numbers;
  for (const std::string& entry : entries_of(list)) {
    uint32_t number = 0;
    const char* const end = entry.data() + entry.size();
    const auto parsed = std::from_chars(entry.data(), end, number);
    if (parsed.ec != std::errc{} || parsed.ptr != end || number < least || number > most) {
      throw std::runtime_error(option + " contains '" + entry + "': use " + range);
    }
    numbers.push_back(number);
  }
  if (numbers.empty()) throw std::runtime_error(option + " is empty: use " + range);
  return numbers;
}

}  // namespace pbox::perf
