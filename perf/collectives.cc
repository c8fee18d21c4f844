// Scenario `collectives`: collectives without named tensors through a pboxd over kernel sockets,
// compared with Gloo's on the same machine and with PBox's own named tensors. Systems take turns,
// and each result of every rank is checked.
#include <iomanip>
#include <stdexcept>

#include "perf/measure.h"
#include "perf/peers/launch.h"
#include "perf/rack/rack.h"
#include "perf/scenario.h"
#include "perf/turns.h"

namespace pbox::perf::collectives_scenario {
namespace {

constexpr const char* kGloo = "gloo-tcp";

struct Case {
  const char* key;  // in JSON
  const char* layout;
  const char* call;
  uint32_t workers;
  bool has_named_tensors;  // PBox can do the same with tensors that are registered
};

constexpr Case kCases[] = {
    {"all_reduce_tensors_2", "tensors", "all_reduce", 2, true},
    {"all_reduce_tensors_4", "tensors", "all_reduce", 4, true},
    {"all_reduce_buffer_4", "buffer", "all_reduce", 4, true},
    {"reduce_scatter_buffer_4", "buffer", "reduce_scatter", 4, false},
    {"all_gather_buffer_4", "buffer", "all_gather", 4, false},
};

void add_options(po::options_description& options) {
  options.add_options()("model", po::value<std::string>()->default_value("resnet50"), kModelHelp)(
      "turns", po::value<uint32_t>()->default_value(21),
      "number of timed exchanges per system and case");
}

nlohmann::json measure(const Case& one, PeerOptions options, bool has_gloo, uint32_t turns,
                       std::ostream& report) {
  options.layout = one.layout;
  options.worker_count = one.workers;
  options.call = one.call;
  std::vector<LoopbackSystem> systems;
  systems.push_back(start_on_loopback("pbox", options));
  if (has_gloo) systems.push_back(start_on_loopback(kGloo, options));
  if (one.has_named_tensors) {
    options.call = "exchange";
    systems.push_back(start_on_loopback("pbox", options));
    systems.back().key = "pbox_named";
  }
  take_turns(systems, turns, report);
  finish(systems);

  nlohmann::json figures = {{"workers", one.workers},
                            {"received_bytes", systems.front().received_bytes}};
  const std::vector<double>& own = systems.front().ms;
  for (const LoopbackSystem& system : systems) {
    figures["systems"][system.key] = {{"median_ms", median(system.ms)},
                                      {"cpu_s", median(system.cpu_seconds)}};
    if (system.key == "gloo_tcp") figures["speedup_over_gloo"] = median_ratio(system.ms, own);
    if (system.key == "pbox_named") figures["over_named"] = median_ratio(own, system.ms);
  }
  return figures;
}

void print(const Case& one, const nlohmann::json& figures, std::ostream& report) {
  const auto cell = [&](const nlohmann::json& object, const char* key, int width, int digits) {
    report << std::setw(width) << std::setprecision(digits);
    object.contains(key) ? report << object[key].get<double>() : report << "-";
  };
  const nlohmann::json none = nlohmann::json::object();
  report << "  " << std::left << std::setw(25) << one.key << std::right << std::fixed;
  for (const char* system : {"pbox", "gloo_tcp", "pbox_named"}) {
    const bool is_here = figures["systems"].contains(system);
    cell(is_here ? figures["systems"][system] : none, "median_ms", 12, 1);
  }
  cell(figures, "speedup_over_gloo", 13, 2);
  cell(figures, "over_named", 12, 2);
  report << std::endl;
}

nlohmann::json run(const po::variables_map& options, std::ostream& report) {
  const PeerOptions peer{.model = options["model"].as<std::string>(), .warmup = 3};
  const auto turns = std::max(1u, options["turns"].as<uint32_t>());
  const auto gloo = peer_command(kGloo, peer, sibling_program(""));
  if (!gloo) report << "Gloo is left out: " << gloo.error().message << "\n";
  report << peer.model << "            PBox ms     Gloo ms    named ms    Gloo/PBox  PBox/named"
         << std::endl;
  nlohmann::json figures = {{"model", peer.model}, {"turns", turns}};
  for (const Case& one : kCases) {
    figures["cases"][one.key] = measure(one, peer, gloo.ok(), turns, report);
    print(one, figures["cases"][one.key], report);
  }
  const auto received = [&](const char* key) {
    return figures["cases"][key]["received_bytes"].get<double>();
  };
  const double share = received("all_reduce_buffer_4") / received("reduce_scatter_buffer_4");
  figures["all_reduce_over_reduce_scatter_bytes"] = share;
  report << "  the box sends " << std::setprecision(3) << share
         << " times fewer bytes for a reduce_scatter than for an all_reduce of the same buffer\n";
  return figures;
}

const ScenarioRegistration kRegistration(
    {.name = "collectives",
     .summary = "collectives through a box over sockets, compared with Gloo and with named tensors",
     .add_options = add_options,
     .run = run});

}  // namespace
}  // namespace pbox::perf::collectives_scenario
