#include "config/suggest.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "config/fields.h"

namespace pbox::config {
namespace {

// Returns the Levenshtein distance, computed one row at a time.
size_t edit_distance(const std::string& left, const std::string& right) {
  std::vector<size_t> row(right.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= left.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= right.size(); ++j) {
      const size_t replaced = diagonal + (left[i - 1] == right[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[right.size()];
}

std::string without_section(const std::string& key) {
  const size_t dot = key.find('.');
  return dot == std::string::npos ? key : key.substr(dot + 1);
}

}  // namespace

std::string nearest_key(const std::string& mistyped) {
  constexpr size_t kDistanceMax = 3;
  std::string nearest;
  size_t nearest_distance = kDistanceMax + 1;
  for (const auto& field : fields()) {
    size_t distance = edit_distance(mistyped, field.key);
    // The key is right, but its section is wrong or missing.
    if (without_section(mistyped) == without_section(field.key)) distance = std::min(distance, 1ul);
    if (distance >= nearest_distance) continue;
    nearest_distance = distance;
    nearest = field.key;
  }
  return nearest;
}

}  // namespace pbox::config
