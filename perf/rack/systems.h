// Systems that take turns on one rack: each a peer program (perf/peers) on the worker machines.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "perf/peers/peer.h"
#include "perf/rack/rack.h"

namespace pbox::perf {

struct System {
  std::string key;  // in JSON: gloo_tcp
  std::unique_ptr<Program> program;
  std::vector<double> ms, cpu_seconds, idle_shares;
};

std::vector<PeerHost> worker_hosts(const Rack& rack);

// Returns when it is ready. Throws std::runtime_error, as measure_once does.
System start_system(const Rack& rack, const std::string& name, const PeerOptions& options);

// One exchange; the CPU time is that of the ranks and of these boxes. A wrong sum throws.
void measure_once(System& system, const std::vector<const Program*>& boxes);

// limit_ms: what the cables allow.
nlohmann::json figures_of(const System& system, double limit_ms);

}  // namespace pbox::perf
