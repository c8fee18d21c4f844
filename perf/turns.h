// Systems on loopback that take turns, so that a disturbance of the machine hits all of them. Each
// is a peer program (perf/peers) that runs an exchange when it is told to.
#pragma once

#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "perf/peers/peer.h"
#include "perf/peers/program.h"

namespace pbox::perf {

struct LoopbackSystem {
  std::string key;  // name in JSON, such as gloo_tcp
  std::unique_ptr<Program> program;
  std::vector<double> ms, cpu_seconds;  // by turn
  uint64_t box_bytes = 0;               // the most in any turn
  uint64_t received_bytes = 0;          // by all ranks, in the last turn
};

// Starts a system by its name in perf/peers/launch.h, and returns when it is ready. Throws
// std::runtime_error on failure, like the functions below.
LoopbackSystem start_on_loopback(const std::string& name, const PeerOptions& options);

// Runs one exchange, records it, and returns its duration in milliseconds. Throws if a result is
// wrong.
double measure_once(LoopbackSystem& system);

// Runs `turns` turns. Each turn runs one exchange of every system, and begins with the next system.
void take_turns(std::vector<LoopbackSystem>& systems, uint32_t turns, std::ostream& report);

// Ends the programs. Their last errors appear on standard error; exit statuses are not checked.
void finish(std::vector<LoopbackSystem>& systems);

}  // namespace pbox::perf
