// One job at one box with a worker on kernel sockets and a worker on a poll-mode device, over
// Ethernet: a bridge in a network namespace joins the three.
#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>

#include "tests/support/daemon.h"
#include "tests/support/sums.h"

namespace pbox::test {
namespace {

constexpr char kBoxDevice[] = "box0";
constexpr char kKernelDevice[] = "sock0";
constexpr char kPolledDevice[] = "poll0";
// DPDK numbers af_packet's fanout groups by process id XOR interface index, and the kernel demands
// different numbers. Processes with similar ids therefore need interfaces whose indices are far
// apart.
constexpr char kFarIndex[] = "16384";

bool run_tool(const Arguments& words) {
  Program program(words[0], Arguments(words.begin() + 1, words.end()));
  return program.wait_exit(kDeadlineMs) == 0;
}

class Bridge {
 public:
  Bridge() : name_("pbox-mix-" + std::to_string(getpid())) {
    works_ = run_tool({"ip", "netns", "add", name_}) &&
             ip({"link", "add", "br0", "type", "bridge"}) && plug(kBoxDevice, "1000") &&
             plug(kKernelDevice, "1001") && plug(kPolledDevice, kFarIndex) &&
             ip({"addr", "add", "10.92.0.2/24", "dev", kKernelDevice}) &&
             ip({"link", "set", "br0", "up"}) && ip({"link", "set", "lo", "up"}) &&
             // A veth neither computes checksums nor segments, so the kernel must do both.
             run_tool({"ip", "netns", "exec", name_, "ethtool", "-K", kKernelDevice, "tx", "off",
                       "tx-udp-segmentation", "off"});
    // The kernel also sees the frames for the other devices, but must answer for its own only.
    WorkerProcess quiet([&](Line&) {
      enter_name_space(name_);
      std::ofstream("/proc/sys/net/ipv4/conf/all/arp_ignore") << 1;
    });
    works_ = works_ && quiet.finish().empty();
  }
  ~Bridge() { run_tool({"ip", "netns", "del", name_}); }
  Bridge(const Bridge&) = delete;
  Bridge& operator=(const Bridge&) = delete;

  // Returns false if the rights or tools that the bridge needs are missing here.
  bool works() const { return works_; }
  const std::string& name() const { return name_; }

 private:
  bool ip(const Arguments& words) const {
    Arguments all = {"ip", "-n", name_};
    all.insert(all.end(), words.begin(), words.end());
    return run_tool(all);
  }
  bool plug(const std::string& device, const std::string& index) const {
    const std::string socket = device + "p";
    return ip({"link", "add", device, "index", index, "mtu", "9000", "type", "veth", "peer", "name",
               socket, "mtu", "9000"}) &&
           ip({"link", "set", socket, "master", "br0", "up"}) && ip({"link", "set", device, "up"});
  }

  std::string name_;
  bool works_ = false;
};

}  // namespace

TEST_CASE("a worker on kernel sockets and one on a poll-mode device sum in one job") {
  Bridge bridge;
  if (!bridge.works()) {
    WARN("skipped: network namespaces cannot be made here (needs root, iproute2 and ethtool)");
    return;
  }
  Daemon daemon(
      {"--data.port=dpdk", "--data.port_first=9542", "--data.mtu=9000", "--dpdk.no_huge=true",
       "--dpdk.memory_mib=512",
       std::string("--dpdk.devices=net_af_packet0,iface=") + kBoxDevice + " 10.92.0.1/24",
       "--pipeline.count=1", "--security.insecure=true", "--security.insecure_off_loopback=true"},
      bridge.name());
  const std::string polled =
      std::string("dpdk:net_af_packet0,iface=") + kPolledDevice + " 10.92.0.3/24 mtu=9000 no_huge";
  for (const pbox_dtype dtype : {PBOX_F32, PBOX_BF16}) {
    std::vector<WorkerProcess> workers;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      workers.emplace_back([&, rank](Line& line) {
        enter_name_space(bridge.name());
        SumsOptions options{.box = daemon.control(), .workers = 2, .dtype = dtype, .rounds = 6};
        if (rank == 1) options.port = polled;
        run_sums_rank(options, rank, line);
      });
    }
    const auto outcome = collect(workers);
    CHECK(outcome.failure == "");
    CHECK(outcome.identical);
    CHECK(outcome.fragment_bytes == 8192);
  }
}

}  // namespace pbox::test
