// The facts about a machine, as a value: read once from hwloc, sysfs and procfs, or loaded from an
// hwloc XML file, so that a plan can be made and tested for a machine that is not at hand.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "nic/ethernet/address.h"

namespace pbox::host {

inline constexpr int kUnknownNode = -1;
inline constexpr uint64_t kHugepageBytes = 2u << 20;
inline constexpr uint64_t kGiantPageBytes = 1u << 30;
inline constexpr uint64_t kUnlimited = ~0ull;

struct NumaNode {
  int node = 0;  // operating-system index
  uint64_t memory_bytes = 0;
  uint64_t hugepages_total = 0;  // 2 MiB pages reserved on the node
  uint64_t hugepages_free = 0;
  uint64_t giant_pages_total = 0;  // 1 GiB pages reserved on the node
  uint64_t giant_pages_free = 0;
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
  uint32_t link_mbps = 0;              // Mb/s; 0: not known
  uint32_t mtu = 0;                    // 0: not known
  std::vector<std::string> addresses;  // IP literals
};

// A PCI network function, including one without an interface because DPDK drives it.
struct PciNetwork {
  std::string address;  // "0000:3b:00.0"
  int node = kUnknownNode;
  std::string driver;       // "vfio-pci"; empty: none, or not known
  std::string iommu_group;  // "17"; empty: none
  uint32_t vendor = 0;
  uint32_t device = 0;
  std::string interface;         // the kernel's name for it; empty: none
  bool vfio_accessible = false;  // this process may open its VFIO group
};

// An RDMA device as the kernel lists it. Facts about ports are those of its first port.
struct RdmaFacts {
  std::string name;  // "mlx5_0"
  int node = kUnknownNode;
  std::string interface;       // the kernel interface that shares its port; empty: none
  bool is_active = false;      // its port has a link
  bool is_accessible = false;  // this process may open it
};

struct VfioFacts {
  bool iommu_active = false;
  bool is_loaded = false;        // the driver vfio-pci is loaded
  bool allows_no_iommu = false;  // enable_unsafe_noiommu_mode
};

// A kernel network interface, on PCI or not.
struct Interface {
  std::string name;
  bool is_up = false;
  uint32_t mtu = 0;                    // 0: not known
  std::vector<std::string> addresses;  // IP literals
  std::vector<nic::InterfaceAddress> networks =
      {};                            // one for each of `addresses`; empty on loopback
  uint32_t reverse_path_filter = 0;  // rp_filter in effect: 0 off, 1 strict, 2 loose
  uint32_t arp_ignore = 0;           // in effect; 0: answers ARP for every address of the host
};

// The interface by which packets from an address of this host leave towards hosts beyond routers.
struct SourceRoute {
  std::string address;
  std::string interface;
};

struct HostFacts {
  std::string source;  // "this machine", or the name of the XML file
  std::string kernel;
  std::vector<NumaNode> nodes;          // ascending
  std::vector<Core> cores;              // ascending by first cpu
  std::vector<Nic> nics;                // ascending by PCI address
  std::vector<PciNetwork> pci_network;  // ascending by address
  std::vector<Interface> interfaces;
  std::vector<SourceRoute> source_routes;  // only addresses that have a route beyond routers
  std::vector<RdmaFacts> rdma;             // ascending by name
  VfioFacts vfio;
  std::vector<int> allowed_cpus;       // by affinity and cpuset; ascending
  double cpu_quota = 0;                // cgroup cpu.max, in CPUs; 0: none
  uint64_t memory_bytes = 0;           // memory of the whole machine
  uint64_t memory_limit_bytes = 0;     // cgroup memory.max; 0: none
  uint64_t memlock_bytes = 0;          // RLIMIT_MEMLOCK; kUnlimited: no limit
  uint64_t receive_buffer_max = 0;     // net.core.rmem_max; 0: not known
  uint64_t send_buffer_max = 0;        // net.core.wmem_max; 0: not known
  bool can_force_buffers = false;      // CAP_NET_ADMIN: SO_RCVBUFFORCE works
  bool can_open_raw_sockets = false;   // CAP_NET_RAW
  bool can_lock_memory = false;        // CAP_IPC_LOCK: memlock_bytes does not apply
  bool can_map_hugepages = false;      // some size has free pages that the cgroup allows
  std::vector<std::string> addresses;  // every IP literal of the host
  bool is_live = false;                // the facts are this machine's: sockets may be opened on it
};

// Reads the facts of this machine. Any thread; changes nothing.
Result<HostFacts> read_host_facts();

// Loads facts from an hwloc 2 XML file. hwloc-annotate can add the infos that are read here:
// PboxAddress, PboxLinkMbps and PboxMtu of a network device, PboxDriver of its PCI device, and
// PboxHugepagesFree of a NUMA node. Limits, control groups and the IOMMU are not in XML: they get
// the values that restrict least.
Result<HostFacts> load_host_facts(const std::string& path);

}  // namespace pbox::host
