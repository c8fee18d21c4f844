#include "config/cpu_list.h"

#include <algorithm>
#include <cstdint>

#include "config/value.h"

namespace pbox::config {

std::optional<std::vector<int>> read_cpu_list(const std::string& text) {
  std::vector<int> cpus;
  if (trim(text).empty()) return cpus;
  for (size_t start = 0; start <= text.size();) {
    const size_t comma = std::min(text.find(',', start), text.size());
    const std::string range = trim(text.substr(start, comma - start));
    const size_t dash = range.find('-');
    const auto first = read_number(range.substr(0, dash));
    const auto last = dash == std::string::npos ? first : read_number(range.substr(dash + 1));
    if (!first || !last || *first > *last || *last >= kCpuIndexMax) return std::nullopt;
    for (uint64_t cpu = *first; cpu <= *last; ++cpu) cpus.push_back(static_cast<int>(cpu));
    start = comma + 1;
  }
  std::sort(cpus.begin(), cpus.end());
  if (std::adjacent_find(cpus.begin(), cpus.end()) != cpus.end()) return std::nullopt;
  return cpus;
}

std::string print_cpu_list(const std::vector<int>& cpus) {
  std::string text;
  for (size_t first = 0; first < cpus.size();) {
    size_t last = first;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text += std::to_string(cpus[first]);
    if (last > first) text += '-' + std::to_string(cpus[last]);
    first = last + 1;
  }
  return text;
}

}  // namespace pbox::config
