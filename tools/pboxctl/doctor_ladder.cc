#include "tools/pboxctl/doctor_ladder.h"

#include <algorithm>

namespace pboxctl {

std::vector<uint32_t> rungs(const Bracket& bracket, uint32_t count) {
  const uint32_t units = (bracket.fails - bracket.passes) / kRungUnitBytes;
  std::vector<uint32_t> sizes;
  if (units < 2) return sizes;
  const uint32_t number = std::min(count, units - 1);
  for (uint64_t index = 1; index <= number; ++index) {
    const auto unit = static_cast<uint32_t>(index * units / (number + 1));
    sizes.push_back(bracket.passes + unit * kRungUnitBytes);
  }
  return sizes;
}

Bracket narrow(const Bracket& bracket, const std::vector<uint32_t>& sizes,
               const std::vector<bool>& came_back) {
  Bracket narrower = bracket;
  for (size_t index = 0; index < sizes.size(); ++index) {
    if (!came_back[index]) {
      narrower.fails = sizes[index];
      break;
    }
    narrower.passes = sizes[index];
  }
  return narrower;
}

}  // namespace pboxctl
