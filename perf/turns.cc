#include "perf/turns.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "perf/peers/launch.h"
#include "perf/rack/rack.h"

namespace pbox::perf {
namespace {

constexpr int kTurnLimitMs = 120'000;

}  // namespace

LoopbackSystem start_on_loopback(const std::string& name, const PeerOptions& options) {
  const auto command = peer_command(name, options, sibling_program(""));
  if (!command) throw std::runtime_error(command.error().message);
  LoopbackSystem system;
  system.key = name;
  std::replace(system.key.begin(), system.key.end(), '-', '_');
  system.program = std::make_unique<Program>(*command);
  const auto ready = nlohmann::json::parse(system.program->read_line(kTurnLimitMs));
  if (!ready.value("ready", false)) throw std::runtime_error(name + " did not become ready");
  return system;
}

double measure_once(LoopbackSystem& system) {
  system.program->write_line("run");
  const auto sample = nlohmann::json::parse(system.program->read_line(kTurnLimitMs));
  if (!sample.at("checked").get<bool>()) {
    throw std::runtime_error(system.key + " returned a wrong result");
  }
  system.ms.push_back(sample.at("ms"));
  system.cpu_seconds.push_back(sample.at("cpu_s"));
  system.box_bytes = std::max(system.box_bytes, sample.value("box_bytes", uint64_t{0}));
  system.received_bytes = sample.value("received_bytes", uint64_t{0});
  return system.ms.back();
}

void take_turns(std::vector<LoopbackSystem>& systems, uint32_t turns, std::ostream& report) {
  for (uint32_t turn = 0; turn < turns; ++turn) {
    for (size_t index = 0; index < systems.size(); ++index) {
      measure_once(systems[(index + turn) % systems.size()]);
    }
    report << "\r  turn " << turn + 1 << "/" << turns << std::flush;
  }
  report << "\r";
}

void finish(std::vector<LoopbackSystem>& systems) {
  for (LoopbackSystem& system : systems) system.program->finish();
}

}  // namespace pbox::perf
