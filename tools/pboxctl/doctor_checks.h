// The checks of a box from a worker's side, in the order in which they run. Each check uses what
// the checks before it found, and adds its results to the report. A check that returns false has
// found a fault that makes the later checks pointless. The comment behind a check lists the names
// of its results, if they differ from its own name. All run on one thread; each ends by its own
// deadline, and soon after stop_requested is set.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nic/endpoint.h"
#include "nic/wire/control_frame.h"
#include "tools/pboxctl/doctor_job.h"
#include "tools/pboxctl/doctor_report.h"
#include "worker/transport/transport_library.h"

namespace pboxctl {

// A box and the path to it. Each check fills in the fields below its name.
struct BoxPath {
  std::string host;  // name or address of the box, without brackets
  uint16_t port = pbox::limits::kControlPort;
  uint32_t seconds = 2;                                 // duration of check_loss's exchange
  std::string worker_port = pbox::worker::kSocketPort;  // as pbox_options.port
  std::string keys;                                     // use_keys(): as pbox_options.keys
  std::string job_pattern = "*";                        // use_keys(): as ProbeOptions::job_pattern

  // check_route sets these. With a port other than sockets, the caller sets the interface and its
  // MTU.
  pbox::nic::Endpoint control;  // the address that accepted a control connection
  std::string interface;        // this host's interface towards the box; empty if unknown
  uint32_t interface_mtu = 0;   // 0 if unknown
  // check_join sets these, and sets `interface` to the one that leads to `data`.
  pbox::proto::Session session;  // the session of a job with default options
  pbox::nic::Endpoint data;      // UDP endpoint of the first pipeline
  // check_data sets it.
  std::vector<bool> silent;  // by pipeline: true if it did not answer

  // Returns the box's address in the form that the client accepts. A link-local address includes
  // its interface.
  std::string box() const;
  // Returns the options of a job for this purpose.
  ProbeOptions probe(const char* purpose, uint32_t path_mtu = 0) const;
  bool uses_sockets() const { return worker_port == pbox::worker::kSocketPort; }
  size_t pipeline_count() const { return static_cast<size_t>(session.pipelines_size()); }
  // Bytes that a packet has besides its payload: IP, UDP and PBox headers, and the tag.
  uint32_t packet_overhead_bytes() const {
    return (data.ipv6 ? 48u : 28u) + pbox::limits::kPacketOverheadBytes;
  }
};

// Stores in `path` the interface that has the address `local`, and its MTU.
void find_interface(const pbox::nic::Endpoint& local, BoxPath& path);

// Adds the check "routes" of this host if it finds a fault. Call it when packets get lost.
void check_own_routes(const BoxPath& path, Report& report);

// Returns the UDP ports of the pipelines that `chosen` marks, as "9542-9544, 9550".
std::string udp_ports(const BoxPath& path, const std::vector<bool>& chosen);

// Returns the path MTU to the box that this host's kernel assumes now, or the interface's MTU for a
// port that bypasses the kernel. 0 if unknown.
uint32_t kernel_path_mtu(const BoxPath& path);

// Reads the keys in `folder`, for a box that has keys. Does nothing if `folder` is empty. Call it
// first.
bool use_keys(const std::string& folder, BoxPath& path, Report& report);  // "keys"
bool check_route(BoxPath& path, Report& report);                          // "name", "control"
bool check_join(BoxPath& path, Report& report);  // "version", "join", "buffers"
bool check_data(BoxPath& path, Report& report);  // "data"
bool check_mtu(const BoxPath& path, Report& report);
bool check_loss(const BoxPath& path, Report& report);
void check_sums(const BoxPath& path, Report& report);  // "sums", "optimizer"

// Runs all checks above in order.
void check_box(BoxPath path, Report& report);

}  // namespace pboxctl
