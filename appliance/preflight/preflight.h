// Finds, before a box runs, what would keep it from running well on this machine. Each finding says
// what to do about it. Evaluates values; only probe_ports() touches the machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "appliance/host/facts.h"
#include "base/result.h"
#include "config/config.h"

namespace pbox::preflight {

enum class CheckLevel { kOk, kWarn, kFail };
const char* to_string(CheckLevel level);  // "ok", "warn", "fail"

struct Check {
  std::string name;
  CheckLevel level = CheckLevel::kOk;
  std::string finding;
  std::string remedy;  // empty when ok
};

// The outcome of binding one address and port.
struct PortProbe {
  std::string key;  // "control.port"
  std::string address;
  uint16_t port = 0;
  bool is_udp = false;
  int error_number = 0;  // errno of the failure; 0 if the bind succeeded
};

// Binds and releases each kernel port that `config` names; skips port 0. `pipeline_count` is the
// plan's. Must not run beside the box, whose own ports it would report as taken.
std::vector<PortProbe> probe_ports(const config::Config& config, uint32_t pipeline_count);

// Checks the kernel's routes to and from `used`, addresses of this host; a wildcard stands for all
// of them. Detects ARP that is answered by the wrong NIC, reverse path filters that drop packets,
// and answers that leave by another NIC. The function is pure.
Check check_routes(const host::HostFacts& facts, const std::vector<std::string>& used);

// Returns all checks for the configured data.port, in a fixed order. The function is pure.
std::vector<Check> preflight(const config::Config& config, const host::HostFacts& facts,
                             const std::vector<PortProbe>& probes);

// Formats a check as "receive-buffer: FINDING. Remedy: REMEDY".
std::string to_line(const Check& check);

// Returns an error that lists every failed check, one per line; ok if none failed.
Status may_start(const std::vector<Check>& checks);

}  // namespace pbox::preflight
