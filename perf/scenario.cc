#include "perf/scenario.h"

#include <algorithm>
#include <cstring>

namespace pbox::perf {
namespace {

// A function-local static, because registrations run before main() in an unspecified order.
std::vector<Scenario>& registry() {
  static std::vector<Scenario> all;
  return all;
}

}  // namespace

ScenarioRegistration::ScenarioRegistration(const Scenario& scenario) {
  registry().push_back(scenario);
}

std::vector<Scenario> scenarios() {
  std::vector<Scenario> sorted = registry();
  std::sort(sorted.begin(), sorted.end(), [](const Scenario& left, const Scenario& right) {
    return std::strcmp(left.name, right.name) < 0;
  });
  return sorted;
}

}  // namespace pbox::perf
