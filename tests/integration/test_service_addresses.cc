// A box with several addresses and interfaces. Two namespaces: the box's, with two interfaces in
// one network and a third in a network of its own, and the rack's, whose bridge joins the first
// two. Answers must leave from the address that the worker uses, and by the interface that has it.
#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <utility>

#include "tests/support/daemon.h"
#include "tests/support/worker_process.h"

namespace pbox::test {
namespace {

constexpr uint32_t kElements = 500'000;
constexpr uint32_t kTimeoutMs = 20'000;

void write_setting(const std::string& name, const std::string& value) {
  std::ofstream file("/proc/sys/net/ipv4/conf/" + name);
  if (!(file << value << std::flush)) throw std::runtime_error("cannot set " + name);
}

class Switch {
 public:
  Switch() {
    const std::string id = std::to_string(getpid());
    box_ = "pbox-nics-" + id;
    rack_ = "pbox-switch-" + id;
    works_ = run_tool({"ip", "netns", "add", box_}) && run_tool({"ip", "netns", "add", rack_}) &&
             in(rack_, {"link", "add", "br0", "type", "bridge"}) && plug("nic0", "br0") &&
             plug("nic1", "br0") && plug("nic2", "") && address("nic0", "10.77.0.1/24") &&
             address("nic0", "10.77.0.11/24") && address("nic1", "10.77.0.2/24") &&
             address("nic2", "10.78.0.1/24") && address("nic0", "fd77::1/64") &&
             address("nic0", "fd77::11/64") && address("nic1", "fd77::2/64") &&
             address("nic2", "fd78::1/64") && in(rack_, {"link", "set", "br0", "up"}) &&
             in(rack_, {"addr", "add", "10.77.0.100/24", "dev", "br0"}) &&
             in(rack_, {"addr", "add", "fd77::100/64", "dev", "br0", "nodad"}) &&
             // The network behind nic2 is reached through nic0.
             in(rack_, {"route", "add", "10.78.0.0/24", "via", "10.77.0.1"}) &&
             in(rack_, {"route", "add", "fd78::/64", "via", "fd77::1"});
    if (!works_) return;
    WorkerProcess settings([this](Line&) {
      enter_name_space(box_);
      write_setting("all/rp_filter", "0");
      for (const char* nic : {"nic0", "nic1", "nic2"}) {
        const std::string folder = std::string(nic) + "/";
        write_setting(folder + "rp_filter", "0");
        write_setting(folder + "arp_ignore", "1");
        write_setting(folder + "arp_announce", "2");
      }
    });
    works_ = settings.finish().empty();
  }
  ~Switch() {
    run_tool({"ip", "netns", "del", box_});
    run_tool({"ip", "netns", "del", rack_});
  }
  Switch(const Switch&) = delete;
  Switch& operator=(const Switch&) = delete;

  // Returns false if the rights or tools that namespaces need are missing here.
  bool works() const { return works_; }
  const std::string& box() const { return box_; }
  const std::string& rack() const { return rack_; }

  // Returns the bytes that the box has sent by this interface.
  uint64_t sent_bytes(const std::string& nic) const {
    WorkerProcess reader([&](Line& line) {
      enter_name_space(box_);
      std::ifstream table("/proc/self/net/dev");
      for (std::string word; table >> word;) {
        if (word != nic + ":") continue;
        for (int field = 0; field < 9; ++field) table >> word;  // 8 of reception, then bytes sent
        line.say(word);
        return;
      }
    });
    return std::stoull(reader.heard().value_or("0"));
  }

 private:
  static bool in(const std::string& name_space, const Arguments& words) {
    Arguments all = {"ip", "-n", name_space};
    all.insert(all.end(), words.begin(), words.end());
    return run_tool(all);
  }
  bool plug(const std::string& nic, const std::string& bridge) const {
    const std::string port = nic + "s";
    return run_tool({"ip", "link", "add", nic, "netns", box_, "type", "veth", "peer", "name", port,
                     "netns", rack_}) &&
           (bridge.empty() || in(rack_, {"link", "set", port, "master", bridge})) &&
           in(rack_, {"link", "set", port, "up"}) && in(box_, {"link", "set", nic, "up"});
  }
  bool address(const std::string& nic, const std::string& text) const {
    return in(box_, text.find(':') == std::string::npos
                        ? Arguments{"addr", "add", text, "dev", nic}
                        : Arguments{"addr", "add", text, "dev", nic, "nodad"});
  }

  std::string box_, rack_;
  bool works_ = false;
};

Arguments box_arguments(const std::string& listen) {
  return {"--box.listen=" + listen, "--admin.enabled=false", "--security.insecure=true",
          "--security.insecure_off_loopback=true"};
}

// Returns "HOST:PORT" with this host and the daemon's control port.
std::string at(const std::string& host, const Daemon& daemon) {
  const std::string port = daemon.control().substr(daemon.control().rfind(':'));
  return (host.find(':') == std::string::npos ? host : "[" + host + "]") + port;
}

// Changes an address or a route of the rack, as `ip` does.
void change_network(const Switch& network, const Arguments& change) {
  Arguments words = {"ip", "-n", network.rack()};
  words.insert(words.end(), change.begin(), change.end());
  must_run(words);
}

// Waits for the round until the library says why it lost the box. Returns the reason.
std::string reason_of_loss(const AbiWorker& worker) {
  constexpr uint32_t kAskAgainMs = 50;
  for (;;) {
    const pbox_status status = pbox_wait(worker.context(), 0, kAskAgainMs);
    const std::string text = worker.must_be(PBOX_TIMEOUT, status);
    if (text.find("was lost") != std::string::npos) return text;
  }
}

// A rank in the rack that runs rounds. After each go() it pushes a round which it cannot finish
// before the next go(), and says why.
WorkerProcess rank_that_loses_the_box(const Switch& network, const std::string& box, int losses) {
  return WorkerProcess([&network, box, losses](Line& line) {
    enter_name_space(network.rack());
    AbiWorker worker({.box = box, .adjust = [](pbox_options& options) {
                        options.wait_timeout_ms = options.recover_timeout_ms = 600'000;
                      }});
    std::vector<float> values(kElements, 1.5f);
    worker.tensor("t", values.size());
    worker.join();
    for (int loss = 0; loss < losses; ++loss) {
      worker.push_pull(0, values.data(), values.data());
      worker.wait(0);
      line.say("ready");
      line.await_go();
      worker.push_pull(0, values.data(), values.data());
      line.say(reason_of_loss(worker));
      line.await_go();
      worker.wait(0);
    }
    require(values.front() == 1.5f && values.back() == 1.5f, "wrong sums");
    require(worker.statistics().recoveries == static_cast<uint32_t>(losses),
            "recovered " + std::to_string(worker.statistics().recoveries) + " times");
    worker.leave();
  });
}

// Runs a job of one rank in the rack. Returns what went wrong; empty if all sums came back.
std::string outcome_of_job(const Switch& network, const std::string& box) {
  WorkerProcess process([&](Line&) {
    enter_name_space(network.rack());
    AbiWorker worker({.box = box});
    std::vector<float> values(kElements, 1.5f);
    worker.tensor("t", values.size());
    worker.join();
    for (int round = 0; round < 3; ++round) {
      worker.push_pull(0, values.data(), values.data());
      worker.must(pbox_wait(worker.context(), 0, kTimeoutMs));
    }
    require(values.front() == 1.5f && values.back() == 1.5f, "wrong sums");
    worker.leave();
  });
  return process.finish();
}

}  // namespace

TEST_CASE("a box on all addresses answers from the address that a worker uses") {
  Switch network;
  if (!network.works()) {
    WARN("skipped: network namespaces cannot be made here (needs root and iproute2)");
    return;
  }
  for (const std::string listen : {"0.0.0.0", "::"}) {
    Daemon daemon(box_arguments(listen), network.box());
    std::vector<std::string> hosts = {"10.77.0.1",   // the first address of a NIC
                                      "10.77.0.11",  // its second address
                                      "10.77.0.2",   // the second NIC in one network
                                      "10.78.0.1"};  // a NIC's address, reached through another NIC
    if (listen == "::") hosts.insert(hosts.end(), {"fd77::1", "fd77::11", "fd77::2", "fd78::1"});
    for (const std::string& host : hosts) {
      INFO("box.listen = " << listen << ", worker uses " << host);
      CHECK(outcome_of_job(network, at(host, daemon)) == "");
    }
  }
}

TEST_CASE("answers leave by the interface that has the address, where two are in one network") {
  Switch network;
  if (!network.works()) {
    WARN("skipped: network namespaces cannot be made here (needs root and iproute2)");
    return;
  }
  struct Case {
    const char *listen, *host, *nic, *other;
  };
  for (const Case& each :
       {Case{"10.77.0.1", "10.77.0.1", "nic0", "nic1"},
        Case{"10.77.0.2", "10.77.0.2", "nic1", "nic0"}, Case{"fd77::1", "fd77::1", "nic0", "nic1"},
        Case{"fd77::2", "fd77::2", "nic1", "nic0"}, Case{"0.0.0.0", "10.77.0.1", "nic0", "nic1"},
        Case{"0.0.0.0", "10.77.0.2", "nic1", "nic0"}, Case{"::", "10.77.0.2", "nic1", "nic0"},
        Case{"::", "fd77::2", "nic1", "nic0"}}) {
    INFO("box.listen = " << each.listen << ", worker uses " << each.host);
    Daemon daemon(box_arguments(each.listen), network.box());
    const uint64_t nic_before = network.sent_bytes(each.nic);
    const uint64_t other_before = network.sent_bytes(each.other);
    CHECK(outcome_of_job(network, at(each.host, daemon)) == "");
    const uint64_t result_bytes = 3 * 4 * uint64_t{kElements};
    CHECK(network.sent_bytes(each.nic) - nic_before > result_bytes);
    CHECK(network.sent_bytes(each.other) - other_before < result_bytes / 10);
  }
}

// The times after which box and worker count a silent peer as lost are so long that they cannot be
// why the rounds go on.
TEST_CASE("a worker whose address is replaced goes on from the new one at once") {
  Switch network;
  if (!network.works()) {
    WARN("skipped: network namespaces cannot be made here (needs root and iproute2)");
    return;
  }
  Arguments arguments = box_arguments("0.0.0.0");
  arguments.push_back("--control.worker_dead_after_ms=86400000");
  Daemon daemon(arguments, network.box());
  WorkerProcess rank = rank_that_loses_the_box(network, at("10.77.0.1", daemon), 2);
  const Arguments first = {"10.77.0.100/24", "dev", "br0"},
                  second = {"10.77.0.101/24", "dev", "br0"};
  for (const auto& [old_address, new_address] :
       {std::pair(first, second), std::pair(second, first)}) {
    REQUIRE(rank.heard() == "ready");
    Arguments change = {"addr", "del"};
    change.insert(change.end(), old_address.begin(), old_address.end());
    change_network(network, change);
    rank.go();
    const std::string reason = rank.heard().value_or("");
    CHECK_THAT(reason, Catch::Contains("this host has lost the address " +
                                       old_address[0].substr(0, old_address[0].find('/'))));
    change[1] = "add";
    change[2] = new_address[0];
    change_network(network, change);
    rank.go();
  }
  CHECK(rank.finish() == "");
}

TEST_CASE("a worker that cannot send to the box any more goes on once it has a route again") {
  Switch network;
  if (!network.works()) {
    WARN("skipped: network namespaces cannot be made here (needs root and iproute2)");
    return;
  }
  Arguments arguments = box_arguments("0.0.0.0");
  arguments.push_back("--control.worker_dead_after_ms=86400000");
  Daemon daemon(arguments, network.box());
  WorkerProcess rank = rank_that_loses_the_box(network, at("10.78.0.1", daemon), 1);
  REQUIRE(rank.heard() == "ready");
  change_network(network, {"route", "del", "10.78.0.0/24"});
  rank.go();
  CHECK_THAT(rank.heard().value_or(""), Catch::Contains("can no longer send to the box") &&
                                            Catch::Contains("Network is unreachable"));
  change_network(network, {"route", "add", "10.78.0.0/24", "via", "10.77.0.1"});
  rank.go();
  CHECK(rank.finish() == "");
}

}  // namespace pbox::test
