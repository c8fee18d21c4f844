// A rack on one machine: workers and boxes, each a network namespace of its own behind one cable (a
// veth pair) to a switch (a bridge in one more namespace). Every cable has a rate both ways:
//
//   Rack rack({.worker_count = 4, .worker_link = {.bits_per_second = 500'000'000},
//              .box_link = {.bits_per_second = 2'000'000'000}});
//   auto box = rack.start_box(0, {"--log.level=warn"});
//   auto worker = rack.run(rack.worker(0), {"pbox-rack-worker", "--box", box.control, ...});
//   rack.set_link(rack.worker(0), {.bits_per_second = 100'000'000});  // while it runs
//
// Namespaces have no names: descriptors of this process and the processes in them are all that
// keeps them, so the kernel removes everything when the process ends, however it ends.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "perf/peers/program.h"

namespace pbox::perf {

struct Link {
  uint64_t bits_per_second = 1'000'000'000;  // rate of Ethernet frames, each way
  // Queue of the switch for this port; further frames are dropped. In bytes, not in time: chunks
  // and windows are not cut down with the rate, so what a switch must keep is not either. A host's
  // own queue holds kHostQueueBytes, as Linux keeps a thousand packets.
  uint64_t queue_bytes = 1 << 20;
  uint32_t delay_us = 0;  // each way; needs a kernel with netem. Once given it may change, not end
};

struct RackOptions {
  uint32_t worker_count = 2;
  uint32_t box_count = 1;
  uint32_t mtu = 9000;
  Link worker_link;
  Link box_link;
};

struct Host {
  std::string address;    // address of eth0, its only interface besides loopback
  std::string port_name;  // port of the switch
  int network = -1;       // descriptor of its namespace
  // How another process of this machine opens the namespace, while this process runs.
  std::string network_path;
};

struct RackBox {
  std::unique_ptr<Program> program;
  std::string control;  // ADDRESS:PORT
};

class Rack {
 public:
  static constexpr char kSubnet[] = "10.77.0.0/16";
  static constexpr char kSwitchAddress[] = "10.77.255.1";
  static constexpr uint64_t kHostQueueBytes = 8 << 20;

  // Throws std::runtime_error, with the remedy, without root, iproute2 or what the kernel must
  // have. Call it from the only thread of the process.
  explicit Rack(const RackOptions& options);
  ~Rack();
  Rack(const Rack&) = delete;
  Rack& operator=(const Rack&) = delete;

  const Host& worker(uint32_t index) const { return workers_.at(index); }
  const Host& box(uint32_t index) const { return boxes_.at(index); }
  const std::vector<Host>& workers() const { return workers_; }
  // The switch itself has kSwitchAddress: for what starts others, as mpirun, and moves no data.
  const Host& fabric() const { return fabric_; }

  // Both directions of a host's cable, at once, while packets are under way.
  void set_link(const Host& host, const Link& link);

  // With precedence over what else the machine does, which is not to be measured.
  std::unique_ptr<Program> run(const Host& host, const std::vector<std::string>& command) const;

  // The pboxd beside this program, off loopback without keys, on free ports; `flags` win. Returns
  // when it is ready.
  RackBox start_box(uint32_t index, const std::vector<std::string>& flags) const;

 private:
  Host make_namespace(const std::string& address);
  void add_cable(Host& host, const std::string& port_name);
  void add_shaper(const Host& host, const Link& link);

  RackOptions options_;
  int home_ = -1;  // the namespace that this process came from
  Host fabric_;
  std::vector<Host> workers_;
  std::vector<Host> boxes_;
};

// Path of a program that is built beside this one.
std::string sibling_program(const std::string& name);

}  // namespace pbox::perf
