// pbox-perf SCENARIO [options] [--json]: runs a scenario and prints a table. With --json, the table
// goes to standard error and the last line of standard output is one JSON object.
#include <cstring>
#include <exception>
#include <iostream>
#include <optional>
#include <string>

#include "perf/scenario.h"

namespace {

using pbox::perf::Scenario;
namespace po = boost::program_options;

void print_usage(std::ostream& out) {
  out << "usage: pbox-perf SCENARIO [options] [--json]\n"
         "       pbox-perf SCENARIO --help\n\nscenarios:\n";
  for (const Scenario& scenario : pbox::perf::scenarios()) {
    const std::string name = scenario.name;
    out << "  " << name << std::string(name.size() < 12 ? 12 - name.size() : 1, ' ')
        << scenario.summary << "\n";
  }
}

std::optional<Scenario> find_scenario(const char* name) {
  for (const Scenario& scenario : pbox::perf::scenarios()) {
    if (std::strcmp(scenario.name, name) == 0) return scenario;
  }
  return std::nullopt;
}

int run_scenario(const Scenario& scenario, int argc, char** argv) {
  po::options_description description(std::string("pbox-perf ") + scenario.name + ": " +
                                      scenario.summary);
  description.add_options()("help", "print this")(
      "json", "print one JSON object as the last line of standard output");
  scenario.add_options(description);
  po::variables_map options;
  po::store(po::command_line_parser(argc, argv)
                .options(description)
                .positional(po::positional_options_description())
                .run(),
            options);
  po::notify(options);
  if (options.count("help") != 0) {
    std::cout << description;
    return 0;
  }
  const bool json = options.count("json") != 0;
  nlohmann::json figures = scenario.run(options, json ? std::cerr : std::cout);
  if (json) {
    figures["scenario"] = scenario.name;
    std::cout << figures.dump() << std::endl;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || std::strcmp(argv[1], "--help") == 0 || std::strcmp(argv[1], "-h") == 0) {
    print_usage(argc < 2 ? std::cerr : std::cout);
    return argc < 2 ? 2 : 0;
  }
  const auto scenario = find_scenario(argv[1]);
  if (!scenario) {
    std::cerr << "pbox-perf: unknown scenario '" << argv[1] << "'\n";
    print_usage(std::cerr);
    return 2;
  }
  try {
    return run_scenario(*scenario, argc - 1, argv + 1);
  } catch (const po::error& error) {
    std::cerr << "pbox-perf " << argv[1] << ": " << error.what() << " (see --help)\n";
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "pbox-perf " << argv[1] << ": " << error.what() << "\n";
    return 1;
  }
}
