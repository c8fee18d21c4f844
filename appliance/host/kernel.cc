#include "appliance/host/kernel.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <linux/capability.h>
#include <net/if.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>

#include "appliance/host/cgroup_limits.h"
#include "appliance/host/pci_network.h"
#include "appliance/host/rdma_facts.h"
#include "appliance/host/source_route.h"
#include "nic/socket/address.h"

namespace pbox::host {
namespace {

constexpr int kMap2MiB = 21 << MAP_HUGE_SHIFT;  // log2 of the page size
constexpr int kMap1GiB = 30 << MAP_HUGE_SHIFT;

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Returns the number in a file; 0 if it is missing, negative or not a number. Where a link's speed
// is not known, sysfs says -1 or fails to read.
uint64_t number_in(const std::string& path) {
  std::ifstream file(path);
  int64_t number = 0;
  return file >> number && number > 0 ? static_cast<uint64_t>(number) : 0;
}

// Reads the line "MemTotal:       5728460 kB".
uint64_t memory_total_bytes() {
  std::istringstream words(text_of("/proc/meminfo"));
  std::string name;
  uint64_t kibibytes = 0;
  return words >> name >> kibibytes && name == "MemTotal:" ? kibibytes << 10 : 0;
}

bool has_capability(int capability) {
  std::istringstream lines(text_of("/proc/self/status"));
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("CapEff:", 0) != 0) continue;
    std::istringstream value(line.substr(7));
    uint64_t mask = 0;
    value >> std::hex >> mask;
    return (mask >> capability & 1) != 0;
  }
  return false;
}

uint64_t memlock_limit_bytes() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return 0;
  return limit.rlim_cur == RLIM_INFINITY ? kUnlimited : limit.rlim_cur;
}

// Returns an address as text. Empty for families other than IP and for IPv6 link-local addresses,
// which a worker cannot use: they mean nothing without their interface.
std::string literal_of(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
    inet_ntop(AF_INET, &v4->sin_addr, text, sizeof(text));
  } else if (address->sa_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address);
    if (IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr)) return {};
    inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof(text));
  }
  return text;
}

// Returns whether one page can be mapped; unmaps it untouched. A control group may forbid pages
// that the kernel counts as free.
bool can_map_page(int size_flag, uint64_t bytes) {
  void* page = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | size_flag, -1, 0);
  if (page == MAP_FAILED) return false;
  munmap(page, bytes);
  return true;
}

uint64_t free_pages(int node, const char* size) {
  return number_in("/sys/devices/system/node/node" + std::to_string(node) +
                   "/hugepages/hugepages-" + size + "/free_hugepages");
}

// Returns a setting in effect. The kernel applies the larger of the interface's value and that of
// `all`.
uint32_t ip_setting(const std::string& interface, const char* name) {
  const std::string folder = "/proc/sys/net/ipv4/conf/";
  return static_cast<uint32_t>(
      std::max(number_in(folder + "all/" + name), number_in(folder + interface + "/" + name)));
}

Interface& interface_named(HostFacts& facts, const std::string& name) {
  for (auto& interface : facts.interfaces) {
    if (interface.name == name) return interface;
  }
  Interface interface;
  interface.name = name;
  interface.mtu = static_cast<uint32_t>(number_in("/sys/class/net/" + name + "/mtu"));
  interface.reverse_path_filter = ip_setting(name, "rp_filter");
  interface.arp_ignore = ip_setting(name, "arp_ignore");
  facts.interfaces.push_back(std::move(interface));
  return facts.interfaces.back();
}

void read_network(const ifaddrs& entry, const std::string& address, HostFacts& facts,
                  Interface& interface) {
  constexpr size_t kSourceRoutesMax = 64;  // each takes a request to the kernel
  const auto own = nic::parse_endpoint(address, 0);
  if (!own || entry.ifa_netmask == nullptr || (entry.ifa_flags & IFF_LOOPBACK) != 0) return;
  interface.networks.push_back(
      {.address = nic::ip_address(*own),
       .prefix_length = nic::prefix_length(*entry.ifa_netmask, own->ipv6)});
  if (facts.source_routes.size() == kSourceRoutesMax) return;
  const std::string way_out = way_out_of(*own);
  if (!way_out.empty()) facts.source_routes.push_back({address, way_out});
}

// getifaddrs() lists each interface once by itself and once for each of its addresses.
void read_addresses(HostFacts& facts) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    Interface& interface = interface_named(facts, entry->ifa_name);
    interface.is_up = (entry->ifa_flags & IFF_UP) != 0;
    if (entry->ifa_addr == nullptr || !interface.is_up) continue;
    const std::string address = literal_of(entry->ifa_addr);
    if (address.empty()) continue;
    facts.addresses.push_back(address);
    interface.addresses.push_back(address);
    read_network(*entry, address, facts, interface);
    for (auto& nic : facts.nics) {
      if (nic.name == entry->ifa_name) nic.addresses.push_back(address);
    }
  }
  freeifaddrs(list);
}

}  // namespace

uint32_t link_mbps(const std::string& nic) {
  return static_cast<uint32_t>(number_in("/sys/class/net/" + nic + "/speed"));
}

void read_kernel_facts(HostFacts& facts) {
  utsname name{};
  if (uname(&name) == 0) facts.kernel = name.release;
  facts.is_live = true;
  facts.memory_bytes = memory_total_bytes();
  // A node's own file misses memory that was plugged in after boot. A single node has all memory.
  if (facts.nodes.size() == 1) facts.nodes[0].memory_bytes = facts.memory_bytes;
  const auto limits = read_cgroup_limits(text_of("/proc/self/cgroup"), "/sys/fs/cgroup");
  // cgroup version 1 writes "no limit" as a number near 2^63.
  if (limits.memory_bytes < facts.memory_bytes) facts.memory_limit_bytes = limits.memory_bytes;
  facts.cpu_quota = limits.cpus;
  facts.memlock_bytes = memlock_limit_bytes();
  facts.receive_buffer_max = number_in("/proc/sys/net/core/rmem_max");
  facts.send_buffer_max = number_in("/proc/sys/net/core/wmem_max");
  facts.can_force_buffers = has_capability(CAP_NET_ADMIN);
  facts.can_open_raw_sockets = has_capability(CAP_NET_RAW);
  facts.can_lock_memory = has_capability(CAP_IPC_LOCK);
  facts.can_map_hugepages =
      can_map_page(kMap2MiB, kHugepageBytes) || can_map_page(kMap1GiB, kGiantPageBytes);
  facts.pci_network = read_pci_network("");
  facts.vfio = read_vfio_facts("");
  facts.rdma = read_rdma("", facts.nics);
  for (auto& nic : facts.nics) {
    const std::string folder = "/sys/class/net/" + nic.name;
    nic.link_mbps = link_mbps(nic.name);
    nic.mtu = static_cast<uint32_t>(number_in(folder + "/mtu"));
  }
  for (auto& node : facts.nodes) {
    node.hugepages_free = free_pages(node.node, "2048kB");
    node.giant_pages_free = free_pages(node.node, "1048576kB");
  }
  read_addresses(facts);
}

}  // namespace pbox::host
