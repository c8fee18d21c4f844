#include "perf/wire/testpmd.h"

#include <sched.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#include "perf/wire/shell.h"

namespace pbox::perf {
namespace {

// Returns the CPUs that this process may use, as a list. testpmd's two threads move freely among
// them; one of the threads sleeps.
std::string cpu_list() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof(set), &set);
  std::string list;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) list.append(list.empty() ? "" : ",").append(std::to_string(cpu));
  }
  return list;
}

// testpmd reads commands from its standard input. For connect_s seconds they only ask for the state
// of the links: a memif client connects when it is asked for that state. `set txpkts` is a command,
// because --txpkts does not change the packets of tx_first.
std::string command_line(const ForwardOptions& options, uint32_t connect_s) {
  const std::string cpus = cpu_list();
  std::string command =
      "(for second in $(seq " + std::to_string(connect_s) +
      "); do sleep 1; echo show port summary all; done; echo set fwd macswap; echo set txpkts " +
      std::to_string(options.frame_bytes) + "; echo start tx_first; sleep " +
      std::to_string(options.seconds) +
      "; echo stop; echo quit) | timeout 120 dpdk-testpmd --no-telemetry --no-pci -m 512 " +
      (options.hugepages ? "--in-memory" : "--no-huge --no-shconf") + " --lcores '0@(" + cpus +
      "),1@(" + cpus + ")'";
  for (const auto& device : options.devices) command += " '--vdev=" + device + "'";
  command +=
      " -- -i --nb-cores=1 --burst=64 --record-core-cycles --total-num-mbufs=8192 "
      "--mbuf-size=" +
      std::to_string(options.buffer_bytes);
  if (options.devices.size() == 1) command += " --port-topology=loop";
  return command + " 2>&1";
}

// Removes the memif sockets that a crashed testpmd has left behind, because the next one could not
// create them.
void remove_sockets(const ForwardOptions& options) {
  constexpr char kKey[] = "socket=";
  for (const std::string& device : options.devices) {
    const size_t at = device.find(kKey);
    if (at == std::string::npos) continue;
    const size_t begin = at + sizeof(kKey) - 1;
    std::remove(device.substr(begin, device.find(',', begin) - begin).c_str());
  }
}

}  // namespace

// On a busy host, testpmd may get no core during a short run, and memif devices may take seconds to
// connect. Packets sent before that are lost, and testpmd crashes if it ends before that. So each
// further attempt begins later and runs longer.
double forwarding_cycles(ForwardOptions options) {
  constexpr uint32_t kAttempts = 3;
  constexpr double kLonger = 5;
  constexpr char kKey[] = "CPU cycles/packet=";
  uint32_t connect_s = 1;
  std::string said;
  for (uint32_t attempt = 0; attempt < kAttempts;
       ++attempt, options.seconds *= kLonger, connect_s += 15) {
    remove_sockets(options);
    said = output_of(command_line(options, connect_s));
    const size_t at = said.find(kKey);
    const double cycles = at == std::string::npos ? 0 : std::atof(&said[at + sizeof(kKey) - 1]);
    if (cycles > 0) return cycles;
  }
  throw std::runtime_error("dpdk-testpmd (package dpdk-dev) forwarded no packets; its output:\n" +
                           said);
}

}  // namespace pbox::perf
