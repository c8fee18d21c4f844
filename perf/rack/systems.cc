#include "perf/rack/systems.h"

#include <algorithm>
#include <stdexcept>

#include "perf/measure.h"
#include "perf/peers/launch.h"
#include "perf/rack/processor.h"

namespace pbox::perf {
namespace {

constexpr int kSystemLimitMs = 300'000;

double cpu_seconds_of(const std::vector<const Program*>& boxes) {
  double seconds = 0;
  for (const Program* box : boxes) seconds += process_cpu_seconds(box->pid());
  return seconds;
}

}  // namespace

std::vector<PeerHost> worker_hosts(const Rack& rack, uint32_t ranks_of_a_host) {
  std::vector<PeerHost> hosts;
  for (const Host& host : rack.workers()) {
    hosts.insert(hosts.end(), ranks_of_a_host, {host.network_path, host.address});
  }
  return hosts;
}

System start_system(const Rack& rack, const std::string& name, const PeerOptions& options) {
  const std::string folder = sibling_program("");
  const auto command = peer_command(name, options, folder, Rack::kSubnet);
  if (!command) throw std::runtime_error(command.error().message);
  System system;
  system.key = name;
  std::replace(system.key.begin(), system.key.end(), '-', '_');
  system.program = rack.run(rack.fabric(), *command);
  const auto ready = nlohmann::json::parse(system.program->read_line(kSystemLimitMs));
  if (!ready.value("ready", false)) throw std::runtime_error(name + " did not become ready");
  return system;
}

void measure_once(System& system, const std::vector<const Program*>& boxes) {
  const double boxes_cpu_start = cpu_seconds_of(boxes);
  const ProcessorTimes start = processor_times();
  system.program->write_line("run");
  const auto sample = nlohmann::json::parse(system.program->read_line(kSystemLimitMs));
  system.idle_shares.push_back(idle_share(start, processor_times()));
  if (!sample.at("checked").get<bool>()) {
    throw std::runtime_error(system.key + " returned a wrong sum");
  }
  system.ms.push_back(sample.at("ms"));
  system.box_cpu_seconds.push_back(cpu_seconds_of(boxes) - boxes_cpu_start);
  system.cpu_seconds.push_back(sample.at("cpu_s").get<double>() + system.box_cpu_seconds.back());
}

nlohmann::json figures_of(const System& system, double limit_ms) {
  return {{"median_ms", median(system.ms)},
          {"min_ms", *std::min_element(system.ms.begin(), system.ms.end())},
          {"max_ms", *std::max_element(system.ms.begin(), system.ms.end())},
          {"over_limit", median(system.ms) / limit_ms},
          {"cpu_s", median(system.cpu_seconds)},
          {"cores_used", median(system.cpu_seconds) * 1e3 / median(system.ms)},
          {"machine_idle", median(system.idle_shares)}};
}

}  // namespace pbox::perf
