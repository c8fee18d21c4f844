#include "appliance/topology/plan.h"

#include <boost/program_options.hpp>
#include <iostream>

#include "appliance/pipelines/ports.h"
#include "appliance/topology/print.h"
#include "config/config.h"
#include "tools/pboxctl/box_config.h"
#include "tools/pboxctl/commands.h"

namespace pboxctl {
namespace {

namespace options = boost::program_options;

options::options_description plan_options() {
  options::options_description description("Options");
  const std::string config_help = std::string("the box's configuration; otherwise ") +
                                  pbox::config::kDefaultPath + " if it exists";
  const auto file = [] { return options::value<std::string>()->value_name("FILE"); };
  description.add_options()("config", file(), config_help.c_str());
  description.add_options()("topology", file(),
                            "plan for the machine in this hwloc XML file (lstopo --of xml)");
  add_output_option(description);
  description.add_options()("help,h", "print this text");
  return description;
}

// Opens the devices as the box would, adds their capabilities to the plan's reasons, and closes
// them again. While a box runs, its devices cannot be opened; its log has the same capabilities.
void ask_devices(const pbox::config::Config& config, pbox::topology::Topology& topology) {
  const auto ports = pbox::pipelines::Ports::start(topology, config);
  if (!ports) {
    topology.reasons.push_back("the capabilities of the devices are unknown: " +
                               ports.error().message);
    return;
  }
  for (auto& line : (*ports)->describe()) topology.reasons.push_back(std::move(line));
}

int plan(const options::variables_map& given, const Words& settings) {
  const bool as_json = wants_json(given);
  const auto outcome =
      read_config(given.contains("config") ? given["config"].as<std::string>() : "", settings);
  for (const auto& error : outcome.errors) std::cerr << "pboxctl: " << error << '\n';
  if (!outcome.config) return kUsage;
  const auto facts = given.contains("topology")
                         ? pbox::host::load_host_facts(given["topology"].as<std::string>())
                         : pbox::host::read_host_facts();
  if (!facts) {
    std::cerr << "pboxctl: " << facts.error().message << '\n';
    return kFailed;
  }
  auto topology = pbox::topology::plan(*outcome.config, *facts);
  if (!topology) {
    std::cerr << "pboxctl: " << topology.error().message << '\n';
    return kFailed;
  }
  if (facts->is_live) ask_devices(*outcome.config, *topology);
  std::cout << (as_json ? pbox::topology::to_json(*topology) : pbox::topology::to_text(*topology));
  return kDone;
}

}  // namespace

const Command kPlan = {
    "plan",
    "[options] [--section.key=value ...]",
    "show which cores, NICs and memory a box would use, and why",
    "Shows which cores, NICs and memory a box would use, and why. To try settings of pboxd, give\n"
    "them as options.",
    plan_options,
    plan,
    Command::More::kSettings};

}  // namespace pboxctl
