#include "perf/rack/rack.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "perf/rack/command.h"

namespace pbox::perf {
namespace {

constexpr char kInterface[] = "eth0";
constexpr char kBridge[] = "switch";
// Burst of a cable, as a time at its rate. The burst lets the shaper catch up after a late wake-up
// on a busy machine, so that the cable keeps its rate.
constexpr double kBurstSeconds = 1e-3;
constexpr int kPrecedence = -15;  // nice value
constexpr uint64_t kEthernetHeaderBytes = 14;

std::runtime_error no_namespace(const std::string& what) {
  return std::runtime_error("cannot create the rack: no " + what + ": " + std::strerror(errno) +
                            "; it needs root and network namespaces");
}

int open_own_network() {
  return open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
}

// Returns the arguments of a tbf (token bucket filter, tc-tbf(8)) that follow its device.
std::string bucket(const Link& link, uint32_t mtu, uint64_t queue_bytes) {
  const auto bytes_per_second = static_cast<double>(link.bits_per_second) / 8;
  const uint64_t frame = mtu + kEthernetHeaderBytes;
  const auto burst = std::max(2 * frame, static_cast<uint64_t>(bytes_per_second * kBurstSeconds));
  return "tbf rate " + std::to_string(link.bits_per_second) + "bit burst " + std::to_string(burst) +
         "b limit " + std::to_string(queue_bytes) + "b\n";
}

void run_ip(const std::string& batch, int network) {
  run_command({"ip", "-batch", "-"}, batch, network);
}

void run_tc(const std::string& batch, int network) {
  run_command({"tc", "-batch", "-"}, batch, network);
}

}  // namespace

std::string sibling_program(const std::string& name) {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
}

RackOptions balanced_rack(uint32_t workers, uint32_t mtu, const Link& worker_link) {
  const Link box_link{.bits_per_second = worker_link.bits_per_second * workers,
                      .queue_bytes = worker_link.queue_bytes};
  return {.worker_count = workers,
          .box_count = 1,
          .mtu = mtu,
          .worker_link = worker_link,
          .box_link = box_link};
}

Rack::Rack(const RackOptions& options) : options_(options), home_(open_own_network()) {
  if (geteuid() != 0) {
    throw std::runtime_error("cannot create the rack: network namespaces need root; try sudo");
  }
  fabric_ = make_namespace(kSwitchAddress);
  run_ip("link add " + std::string(kBridge) + " mtu " + std::to_string(options.mtu) +
             " type bridge stp_state 0\n" + "addr add " + kSwitchAddress + "/16 dev " + kBridge +
             "\nlink set " + kBridge + " up\n",
         fabric_.network);
  for (uint32_t index = 0; index < options.box_count; ++index) {
    boxes_.push_back(make_namespace("10.77.0." + std::to_string(index + 1)));
    add_cable(boxes_.back(), "box" + std::to_string(index), options.box_link);
  }
  for (uint32_t index = 0; index < options.worker_count; ++index) {
    workers_.push_back(make_namespace("10.77.1." + std::to_string(index + 1)));
    add_cable(workers_.back(), "worker" + std::to_string(index), options.worker_link);
  }
  for (Host& host : boxes_) add_shaper(host, options.box_link);
  for (Host& host : workers_) add_shaper(host, options.worker_link);
  if (!delayed_.empty()) start_delays();
}

Rack::~Rack() {
  for (const Host& host : workers_) close(host.network);
  for (const Host& host : boxes_) close(host.network);
  if (fabric_.network >= 0) close(fabric_.network);
  close(home_);
}

Host Rack::make_namespace(const std::string& address) {
  if (unshare(CLONE_NEWNET) != 0) throw no_namespace("network namespace");
  Host host;
  host.address = address;
  host.network = open_own_network();
  host.network_path = "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(host.network);
  // Disables IPv6, so that the kernel sends no traffic of its own on the cables.
  std::ofstream("/proc/sys/net/ipv6/conf/default/disable_ipv6") << "1";
  if (setns(home_, CLONE_NEWNET) != 0)
    throw no_namespace("return to this process's network namespace");
  run_ip("link set lo up\n", host.network);
  return host;
}

// A long cable has two halves, between which pbox-rack-delay moves the frames. Large messages are
// segmented before they enter the first half, so that frames are lost one by one.
void Rack::add_cable(Host& host, const std::string& port_name, const Link& link) {
  host.port_name = port_name;
  const std::string mtu = " mtu " + std::to_string(options_.mtu);
  std::string end = port_name;
  if (is_long(link)) {
    end = port_name + "-far";
    const std::string near = port_name + "-near";
    run_ip("link add " + port_name + mtu + " type veth peer name " + near + mtu + "\nlink set " +
               near + " up\n",
           fabric_.network);
    delayed_.push_back(near + "," + end + "," + std::to_string(link.delay_us) + "," +
                       std::to_string(link.jitter_us) + "," + std::to_string(link.loss));
  }
  run_ip("link add " + end + mtu + " type veth peer name " + kInterface + mtu + " netns " +
             host.network_path + "\nlink set " + end + " up\n",
         fabric_.network);
  run_ip("link set " + port_name + " master " + kBridge + " up\n", fabric_.network);
  const std::string segments = is_long(link) ? " gso_max_segs 1" : "";
  run_ip("addr add " + host.address + "/16 dev " + kInterface + "\nlink set " + kInterface +
             segments + " up\n",
         host.network);
}

void Rack::start_delays() {
  constexpr int kStartLimitMs = 10'000;
  std::vector<std::string> command = {sibling_program("pbox-rack-delay")};
  for (const std::string& pair : delayed_) command.insert(command.end(), {"--pair", pair});
  delays_ = run(fabric_, command);
  delays_->read_line(kStartLimitMs);
}

void Rack::add_shaper(const Host& host, const Link& link) {
  if (link.bits_per_second == 0) return;
  const std::string port = host.port_name;
  run_tc("qdisc add dev " + std::string(kInterface) +
             " root handle 1: " + bucket(link, options_.mtu, kHostQueueBytes),
         host.network);
  run_tc(
      "qdisc add dev " + port + " root handle 1: " + bucket(link, options_.mtu, link.queue_bytes),
      fabric_.network);
}

void Rack::set_link(const Host& host, const Link& link) {
  const std::string port = host.port_name;
  run_tc("qdisc change dev " + std::string(kInterface) +
             " root handle 1: " + bucket(link, options_.mtu, kHostQueueBytes),
         host.network);
  run_tc("qdisc change dev " + port +
             " root handle 1: " + bucket(link, options_.mtu, link.queue_bytes),
         fabric_.network);
}

std::unique_ptr<Program> Rack::run(const Host& host,
                                   const std::vector<std::string>& command) const {
  auto program = std::make_unique<Program>(command, host.network);
  setpriority(PRIO_PROCESS, static_cast<id_t>(program->pid()), kPrecedence);
  return program;
}

RackBox Rack::start_box(const Host& host, const std::vector<std::string>& flags) const {
  constexpr int kStartLimitMs = 30'000;
  std::vector<std::string> command = {sibling_program("pboxd")};
  for (const std::string& preset :
       {"--box.listen=" + host.address, std::string("--control.port=0"),
        std::string("--data.port_first=0"), std::string("--cluster.state_directory=none"),
        std::string("--admin.enabled=false"), std::string("--log.level=warn"),
        std::string("--security.insecure=true"),
        std::string("--security.insecure_off_loopback=true")}) {
    const std::string key = preset.substr(0, preset.find('=') + 1);
    const auto sets = [&](const std::string& flag) { return flag.starts_with(key); };
    if (std::none_of(flags.begin(), flags.end(), sets)) command.push_back(preset);
  }
  command.insert(command.end(), flags.begin(), flags.end());
  RackBox started{run(host, command), ""};
  // "pboxd ready control=ADDRESS:PORT ..." is the first line a box prints.
  const std::string line = started.program->read_line(kStartLimitMs);
  std::istringstream words(line);
  const std::string key = "control=";
  for (std::string word; words >> word;) {
    if (word.rfind(key, 0) == 0) started.control = word.substr(key.size());
  }
  if (started.control.empty()) {
    throw std::runtime_error("pboxd did not become ready: '" + line + "'");
  }
  return started;
}

}  // namespace pbox::perf
