// The checked configuration of one box, as a plain value. Only parse.h reads the file and the
// flags, at the start and on SIGHUP. The value is then handed down: no other code reads the file,
// and no setting comes from an environment variable. Member names are the names of the sections and
// keys in the file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/limits.h"

namespace pbox::config {

// kAuto leaves the choice to the box. Topology::reasons states the choices about cores and memory.
enum class OnOffAuto { kAuto, kOn, kOff };
enum class PollMode { kAdaptive, kBusy };       // kAdaptive: spin for spin_us, then sleep
enum class PortKind { kSocket, kDpdk, kRdma };  // kRdma: sockets, and RDMA devices beside them
enum class StoreKind { kLocal, kEtcd };
enum class LogLevel { kDebug, kInfo, kWarn, kError };
enum class LogFormat { kText, kJson };

struct Box {
  std::string name;                  // parse() puts the host name here if no name is given
  std::string listen = "127.0.0.1";  // address of control and data: an IPv4 or IPv6 literal
  bool operator==(const Box&) const = default;
};

struct Control {
  uint16_t port = limits::kControlPort;  // TCP; 0: any free port
  uint32_t join_timeout_s = 600;         // for any job; workers may ask for less
  uint32_t heartbeat_interval_ms = 1'000;
  uint32_t worker_dead_after_ms = 10'000;    // silence on the control connection that means "lost"
  uint32_t worker_lost_timeout_ms = 10'000;  // how long a lost worker may take to come back
  uint32_t connections_max = limits::kControlConnectionsMax;
  bool operator==(const Control&) const = default;
};

struct Cluster {
  std::string state_directory = "/var/lib/pbox";  // for state that survives restarts; empty: none
  StoreKind store = StoreKind::kLocal;
  std::vector<std::string> endpoints;  // etcd's members, as HOST:PORT
  std::string name = "pbox";           // boxes of one name in one etcd are one cluster
  uint32_t lease_ttl_s = 10;           // a box that is silent for this long is considered lost
  bool rebalance = true;               // the leader moves parts of jobs to boxes that finish sooner
  uint32_t rebalance_interval_ms = 1'000;  // time between reports on how long rounds take
  bool standby = false;                    // this box takes no parts until the cluster needs it
  bool scale = false;             // the leader uses standbys, asks for boxes and empties boxes
  std::string scale_hook;         // program that starts and stops machines; empty: none
  uint32_t scale_out_above = 80;  // percent of the boxes' capacity in use
  uint32_t scale_in_below = 50;   // percent of the capacity of the boxes that would remain
  uint32_t scale_after_s = 60;    // how long a condition holds before the leader acts
  uint32_t boxes_min = 1;         // fewest boxes that take parts
  std::string user;               // etcd's user; empty: none
  std::string password_file;
  std::string ca_file;  // PEM; empty: no TLS
  std::string cert_file;
  std::string key_file;
  bool operator==(const Cluster&) const = default;
};

// The upper box that adds up the sums of several boxes. This box is one of its ranks.
struct Upstream {
  std::string box;              // HOST:PORT of its control connection; empty: sums stay here
  uint32_t rank = 0;            // this box's rank at the upper box
  uint32_t world_size = 1;      // number of boxes below the upper box
  std::string port = "socket";  // in the form of a worker's PBOX_PORT
  bool operator==(const Upstream&) const = default;
};

struct Admin {
  bool enabled = true;
  std::string listen = "127.0.0.1";
  uint16_t port = limits::kAdminPort;  // TCP; 0: any free port
  std::vector<std::string> hosts;      // additional names by which clients reach the server
  std::string socket;                  // path of a UNIX socket; empty: none
  OnOffAuto tls = OnOffAuto::kAuto;    // over TCP; needs keys; kAuto: unless `listen` is loopback
  bool operator==(const Admin&) const = default;
};

struct Data {
  uint16_t port_first = limits::kDataPortFirst;  // UDP; pipeline i has port_first + i; 0: any free
                                                 // ports, not allowed with kDpdk
  PortKind port = PortKind::kSocket;
  uint32_t receive_buffer_bytes = 8u << 20;  // for each pipeline's socket
  uint32_t send_buffer_bytes = 8u << 20;
  uint32_t mtu = 0;  // bytes; 0: as the path allows, or kDpdkMtuDefault with kDpdk
  bool payload_crc = false;
  OnOffAuto gso = OnOffAuto::kAuto;  // kAuto or kOff
  bool shm = true;                   // with kSocket: workers of this host may use shared memory
  bool operator==(const Data&) const = default;
};

inline constexpr uint32_t kDpdkMtuDefault = 1'500;
inline constexpr uint32_t kDpdkMtuMax = 9'216;
inline constexpr uint32_t kDpdkDevicesMax = 32;  // RTE_MAX_ETHPORTS, as distributions build DPDK

// PCI addresses are in lower case with their domain, and IP addresses as inet_ntop writes them,
// however the file spells them. See dpdk_device.h.
struct DpdkDevice {
  std::string
      device;  // "0000:3b:00.0", or a virtual one in DPDK's notation: "net_memif0,role=server"
  std::vector<std::string> addresses;  // "10.0.0.1/24"; at least one
  std::vector<std::string> gateways;   // "10.0.0.254"; at most one of each family
  uint16_t vlan = 0;                   // in [1, 4094]; 0: frames are untagged
  bool operator==(const DpdkDevice&) const = default;
};

struct Dpdk {
  std::vector<DpdkDevice> devices;  // devices with equal addresses form one of device_groups()
  bool no_huge = false;             // use ordinary pages, not hugepages
  uint32_t memory_mib = 0;          // packet memory on each NUMA node; 0: as much as the plan needs
  bool operator==(const Dpdk&) const = default;
};

inline constexpr int32_t kGidIndexAuto = -1;
inline constexpr uint32_t kRdmaDevicesMax = 32;

enum class RdmaMode { kSend, kWriteImm };

struct Rdma {
  std::vector<std::string> devices;  // "mlx5_0"; empty: those near the pipelines
  int32_t gid_index =
      kGidIndexAuto;  // in each device's GID table; auto: RoCE v2, nearest to the address
  RdmaMode mode = RdmaMode::kSend;  // how workers' packets arrive
  bool operator==(const Rdma&) const = default;
};

struct Pipeline {
  uint32_t count = 0;      // 0: as the topology decides
  std::vector<int> cores;  // operating-system CPU indices, ascending; empty: all usable
  PollMode poll = PollMode::kAdaptive;
  uint32_t spin_us = 20;
  OnOffAuto pin = OnOffAuto::kAuto;
  OnOffAuto numa = OnOffAuto::kAuto;  // kAuto or kOff
  uint64_t window_bytes = 0;          // most in flight per worker and pipeline; 0: 1 MiB
  bool rebalance = true;              // chunks of jobs move to pipelines that finish sooner
  bool operator==(const Pipeline&) const = default;
};

struct Recorder {
  std::string directory = "/run/pbox";  // folder of rings and dumped files; empty: memory only
  uint32_t records = 65'536;            // per pipeline; rounded up to a power of two
  uint32_t late_after_ms = 10'000;      // a round that waits this long makes the recorder dump
  bool operator==(const Recorder&) const = default;
};

struct Snapshots {
  std::string directory =
      "/var/lib/pbox/snapshots";  // shared by all boxes of a cluster; empty: none
  uint32_t every_s = 0;           // between snapshots of a job; 0: only on request
  bool operator==(const Snapshots&) const = default;
};

struct Memory {
  double job_share = 0.85;  // share of the box's memory that all jobs together may take
  OnOffAuto hugepages = OnOffAuto::kAuto;  // kAuto or kOff
  bool operator==(const Memory&) const = default;
};

// Bounds on one tenant's jobs on this box, and the tenant's share of the box's turns. A bound of 0
// means no bound.
struct Tenant {
  std::string name;          // "*": each tenant that is not listed
  uint32_t weight = 1;       // share of turns and buffers while others want them
  uint32_t jobs = 0;         // at a time
  uint64_t memory_mib = 0;   // for its jobs, their kept states, and cuts for snapshots
  uint32_t sessions = 0;     // one for each rank, part and pipeline
  uint32_t connections = 0;  // control connections
  bool operator==(const Tenant&) const = default;
};

struct Jobs {
  uint32_t max = limits::kJobsMax;
  uint32_t workers_max = limits::kWorkersPerJobMax;  // per job
  uint32_t chunks_max = limits::kChunksPerJobMax;    // per job
  uint32_t chunk_bytes = limits::kChunkBytesDefault;
  std::vector<Tenant> tenants;
  bool operator==(const Jobs&) const = default;
};

struct Security {
  std::string keys;                       // folder of this box's keys; empty: none
  OnOffAuto insecure = OnOffAuto::kAuto;  // run without keys; kAuto: on loopback only
  bool insecure_off_loopback = false;
  bool encrypt = false;               // with keys: packets' payloads too
  uint64_t key_packets = 1ull << 31;  // packets that one key of a session seals
  bool operator==(const Security&) const = default;
};

struct Log {
  LogLevel level = LogLevel::kInfo;
  LogFormat format = LogFormat::kText;
  std::string audit;  // file of the audit log, or "stderr"; empty: none
  bool operator==(const Log&) const = default;
};

struct Config {
  Box box;
  Control control;
  Cluster cluster;
  Upstream upstream;
  Admin admin;
  Data data;
  Dpdk dpdk;
  Rdma rdma;
  Pipeline pipeline;
  Recorder recorder;
  Snapshots snapshots;
  Memory memory;
  Jobs jobs;
  Security security;
  Log log;
  bool operator==(const Config&) const = default;
};

// Returns whether the HTTP server has TLS over TCP.
bool admin_has_tls(const Config& config);

inline constexpr char kDefaultPath[] = "/etc/pbox/pboxd.conf";

}  // namespace pbox::config
