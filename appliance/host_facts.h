// What a machine is, as a value: read once (hwloc, sysfs, procfs) or loaded from an hwloc
// XML file, so that a plan can be made and tested for a machine that is not at hand.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace pbox::appliance {

inline constexpr int kUnknownNode = -1;
inline constexpr uint64_t kHugepageBytes = 2u << 20;
inline constexpr uint64_t kUnlimited = ~0ull;

struct NumaNode {
  int node = 0;  // operating-system index
  uint64_t memory_bytes = 0;
  uint64_t hugepages_total = 0;  // of 2 MiB
  uint64_t hugepages_free = 0;
};

struct Core {
  int package = 0;
  int node = 0;
  std::vector<int> cpus;  // operating-system indices of its hardware threads; at least one
};

struct Nic {
  std::string name;         // as the kernel names the interface
  std::string pci_address;  // "0000:3b:00.0"
  int node = kUnknownNode;
  uint32_t link_mbps = 0;              // 0: not known
  uint32_t mtu = 0;                    // 0: not known
  std::vector<std::string> addresses;  // IP literals
};

struct HostFacts {
  std::string source;  // "this machine", or the file's name
  std::string kernel;
  std::vector<NumaNode> nodes;         // ascending
  std::vector<Core> cores;             // ascending by first cpu
  std::vector<Nic> nics;               // ascending by PCI address
  std::vector<int> allowed_cpus;       // affinity and cpuset; ascending
  double cpu_quota = 0;                // cgroup cpu.max, in CPUs; 0: none
  uint64_t memory_bytes = 0;           // of the whole machine
  uint64_t memory_limit_bytes = 0;     // cgroup memory.max; 0: none
  uint64_t memlock_bytes = 0;          // RLIMIT_MEMLOCK; kUnlimited
  uint64_t receive_buffer_max = 0;     // net.core.rmem_max; 0: not known
  uint64_t send_buffer_max = 0;        // net.core.wmem_max; 0: not known
  bool can_force_buffers = false;      // CAP_NET_ADMIN: SO_RCVBUFFORCE works
  std::vector<std::string> addresses;  // every IP literal of the host
  bool is_live = false;                // this machine: sockets may be tried
};

// Any thread; reads files, changes nothing.
Result<HostFacts> read_host_facts();

// From an hwloc 2 XML file. A network device may carry the infos PboxAddress, PboxLinkMbps and
// PboxMtu (hwloc-annotate adds them), a NUMA node PboxHugepagesFree. What XML cannot say (limits,
// cgroup) is unlimited.
Result<HostFacts> load_host_facts(const std::string& path);

}  // namespace pbox::appliance
