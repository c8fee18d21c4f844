// The scenarios of pbox-perf. A scenario has a file of its own and registers itself:
//
//   const ScenarioRegistration kRegistration({.name = "kernels", ...});
//
// Every figure that is compared between runs is a ratio of two measurements of the same run.
#pragma once

#include <boost/program_options.hpp>
#include <nlohmann/json.hpp>
#include <ostream>
#include <vector>

namespace pbox::perf {

namespace po = boost::program_options;

struct Scenario {
  const char* name;
  const char* summary;  // one line, for --help
  void (*add_options)(po::options_description& options);
  // Runs the scenario, writes progress and a table to `report`, and returns the figures. Throws
  // std::exception if the scenario cannot run on this machine.
  nlohmann::json (*run)(const po::variables_map& options, std::ostream& report);
};

class ScenarioRegistration {
 public:
  explicit ScenarioRegistration(const Scenario& scenario);
};

// Returns all registered scenarios, sorted by name.
std::vector<Scenario> scenarios();

}  // namespace pbox::perf
