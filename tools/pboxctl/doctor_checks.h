// The checks of a box from a worker's side, in the order in which they are made: each needs what
// those before it found. They add to the report as they learn; false says that what follows has no
// ground to stand on. One thread; each ends by its own deadline, and soon after stop_requested.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nic/endpoint.h"
#include "nic/wire/control_frame.h"
#include "tools/pboxctl/doctor_report.h"
#include "worker/transport/transport_library.h"

namespace pboxctl {

// A box and the way to it, filled in check by check.
struct BoxPath {
  std::string host;  // name or address, without brackets
  uint16_t port = pbox::limits::kControlPort;
  uint32_t seconds = 2;                                 // how long check_loss exchanges
  std::string worker_port = pbox::worker::kSocketPort;  // as pbox_options.port

  // check_route; with another port than sockets given with it
  pbox::nic::Endpoint control;  // the address that took a control connection
  std::string interface;        // of this host; empty: not known
  uint32_t interface_mtu = 0;   // 0: not known
  // check_join
  pbox::proto::Session session;  // as granted to a job that asks for nothing special
  pbox::nic::Endpoint data;      // of the first pipeline; the interface is then the one that
                                 // leads there
  // check_data
  std::vector<bool> silent;  // by pipeline

  // As the client takes it; a link-local address needs its interface.
  std::string box() const;
  bool uses_sockets() const { return worker_port == pbox::worker::kSocketPort; }
  size_t pipeline_count() const { return static_cast<size_t>(session.pipelines_size()); }
  // What IP and UDP headers, ours and the tag add to a payload.
  uint32_t packet_overhead_bytes() const {
    return (data.ipv6 ? 48u : 28u) + pbox::limits::kPacketOverheadBytes;
  }
};

// The interface that has `local`, and its MTU, into `path`.
void find_interface(const pbox::nic::Endpoint& local, BoxPath& path);

// "9542-9544, 9550": of the pipelines that `chosen` marks.
std::string udp_ports(const BoxPath& path, const std::vector<bool>& chosen);

// The MTU of the way to the box that this host's kernel goes by now, or that of the port past it;
// 0: not known.
uint32_t kernel_path_mtu(const BoxPath& path);

bool check_route(BoxPath& path, Report& report);  // "name", "control"
bool check_join(BoxPath& path, Report& report);   // "version", "join", "buffers"
bool check_data(BoxPath& path, Report& report);   // "data"
bool check_mtu(const BoxPath& path, Report& report);
bool check_loss(const BoxPath& path, Report& report);
void check_sums(const BoxPath& path, Report& report);  // "sums", "optimizer"

// All of the above.
void check_box(BoxPath path, Report& report);

}  // namespace pboxctl
