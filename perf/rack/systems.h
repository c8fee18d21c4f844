// The systems that take turns on one rack. Each is a peer program (perf/peers) on the worker
// machines.
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
  std::vector<double> ms, cpu_seconds, box_cpu_seconds, idle_shares;
};

// One entry for each rank; consecutive ranks share a host.
std::vector<PeerHost> worker_hosts(const Rack& rack, uint32_t ranks_of_a_host = 1);

// Starts a system and returns when it is ready. Throws std::runtime_error on failure, like
// measure_once().
System start_system(const Rack& rack, const std::string& name, const PeerOptions& options);

// Runs one exchange and records its time. The CPU time covers the ranks and `boxes`. Throws if a
// sum is wrong.
void measure_once(System& system, const std::vector<const Program*>& boxes);

// Returns the results of a system. `limit_ms` is the shortest time that the cables allow.
nlohmann::json figures_of(const System& system, double limit_ms);

}  // namespace pbox::perf
