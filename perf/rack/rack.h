// Simulates a rack on one machine. Each worker and each box has its own network namespace. One
// cable (a veth pair) connects it to a switch (a bridge in one more namespace). Every cable has a
// rate in each direction:
//
//   Rack rack({.worker_count = 4, .worker_link = {.bits_per_second = 500'000'000},
//              .box_link = {.bits_per_second = 2'000'000'000}});
//   auto box = rack.start_box(0, {"--log.level=warn"});
//   auto worker = rack.run(rack.worker(0), {"pbox-rack-worker", "--box", box.control, ...});
//   rack.set_link(rack.worker(0), {.bits_per_second = 100'000'000});  // while it runs
//
// The namespaces have no names. Only this process's descriptors and the processes inside keep them
// alive, so the kernel removes them when the process ends, even after a crash.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "perf/peers/program.h"

namespace pbox::perf {

struct Link {
  // Rate of Ethernet frames, in each direction. 0: the cable is as fast as the machine, and
  // queue_bytes does not apply.
  uint64_t bits_per_second = 1'000'000'000;
  // Queue of the switch for this port. The switch drops frames that do not fit. The limit is in
  // bytes, not in time, because chunks and windows do not shrink with the rate. A host's own queue
  // holds kHostQueueBytes, close to the thousand packets that Linux queues by default.
  uint64_t queue_bytes = 1 << 20;
  // A long cable, in each direction. Frames are delayed after they have been paced, and keep their
  // order. These three hold from the start on; set_link() does not change them.
  uint32_t delay_us = 0;
  uint32_t jitter_us = 0;  // on top of the delay: uniform from 0 to this
  double loss = 0;         // probability that a frame is lost, in [0, 1]
};

struct RackOptions {
  uint32_t worker_count = 2;
  uint32_t box_count = 1;
  uint32_t mtu = 9000;
  Link worker_link;
  Link box_link;
};

// Returns whether the cable needs more than a rate.
inline bool is_long(const Link& link) {
  return link.delay_us > 0 || link.jitter_us > 0 || link.loss > 0;
}

// Returns the options of a rack with one box, whose cable has the rate of all workers' cables
// together and is never long.
RackOptions balanced_rack(uint32_t workers, uint32_t mtu, const Link& worker_link);

struct Host {
  std::string address;    // address of eth0, its only interface besides loopback
  std::string port_name;  // name of its port at the switch
  int network = -1;       // descriptor of its namespace
  // Path by which another process of this machine opens the namespace; valid while this process
  // runs.
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

  // Throws std::runtime_error that names the remedy if root, iproute2 or a kernel feature is
  // missing. The process must have only one thread, because the constructor switches namespaces.
  explicit Rack(const RackOptions& options);
  ~Rack();
  Rack(const Rack&) = delete;
  Rack& operator=(const Rack&) = delete;

  const Host& worker(uint32_t index) const { return workers_.at(index); }
  const Host& box(uint32_t index) const { return boxes_.at(index); }
  const std::vector<Host>& workers() const { return workers_; }
  // Returns the switch, which has kSwitchAddress. Launchers such as mpirun run there; they move no
  // data.
  const Host& fabric() const { return fabric_; }

  // Changes both directions of a host's cable at once, even while packets are in flight. The cable
  // must have had a rate from the start.
  void set_link(const Host& host, const Link& link);

  // Starts a program on a host. It runs with a higher priority than the machine's other programs,
  // so that they disturb the measurement less.
  std::unique_ptr<Program> run(const Host& host, const std::vector<std::string>& command) const;

  // Starts the pboxd in this program's folder, off loopback, without keys, on free ports. `flags`
  // override the defaults. Returns when the box is ready.
  RackBox start_box(uint32_t index, const std::vector<std::string>& flags) const {
    return start_box(box(index), flags);
  }
  // Starts such a box on any host, for example a worker's.
  RackBox start_box(const Host& host, const std::vector<std::string>& flags) const;

 private:
  Host make_namespace(const std::string& address);
  void add_cable(Host& host, const std::string& port_name, const Link& link);
  void start_delays();
  void add_shaper(const Host& host, const Link& link);

  RackOptions options_;
  int home_ = -1;  // the namespace that this process came from
  Host fabric_;
  std::vector<Host> workers_;
  std::vector<Host> boxes_;
  std::vector<std::string> delayed_;  // long cables, as pbox-rack-delay takes them
  std::unique_ptr<Program> delays_;
};

// Returns the path of a program in this program's folder.
std::string sibling_program(const std::string& name);

}  // namespace pbox::perf
