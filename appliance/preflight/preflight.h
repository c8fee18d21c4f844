// What would keep a box from running well on this machine, found before it runs: each finding says
// what to do about it. An evaluation of values; only probe_ports touches the machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "appliance/host/facts.h"
#include "base/result.h"
#include "config/config.h"

namespace pbox::appliance {

enum class CheckLevel { kOk, kWarn, kFail };
const char* to_string(CheckLevel level);  // "ok", "warn", "fail"

struct Check {
  std::string name;
  CheckLevel level = CheckLevel::kOk;
  std::string finding;
  std::string remedy;  // empty when ok
};

// Whether one address and port could be bound.
struct PortProbe {
  std::string key;  // "control.port"
  std::string address;
  uint16_t port = 0;
  bool is_udp = false;
  int error_number = 0;  // 0: it could
};

// Binds and releases each port that `config` names and the kernel serves; nothing for port 0.
// `pipeline_count`: as planned. Not while the box runs: it would find its own ports taken.
std::vector<PortProbe> probe_ports(const config::Config& config, uint32_t pipeline_count);

// Pure. All checks of data.port, in a fixed order, whatever they find.
std::vector<Check> preflight(const config::Config& config, const HostFacts& facts,
                             const std::vector<PortProbe>& probes);

// "receive-buffer: what was found. Remedy: what to do"
std::string to_line(const Check& check);

// An error that lists every failed check, a line each; ok when none failed.
Status may_start(const std::vector<Check>& checks);

}  // namespace pbox::appliance
