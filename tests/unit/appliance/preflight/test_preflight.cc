#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cerrno>

#include "appliance/preflight/preflight.h"
#include "tests/unit/appliance/machines.h"

namespace pbox::preflight::preflight_test {
namespace {

Check find(const std::vector<Check>& checks, const std::string& name) {
  const auto found = std::find_if(checks.begin(), checks.end(),
                                  [&](const Check& check) { return check.name == name; });
  REQUIRE(found != checks.end());
  CHECK((found->level == CheckLevel::kOk) == found->remedy.empty());
  return *found;
}

Check check_of(const config::Config& config, const host::HostFacts& facts,
               const std::string& name) {
  return find(preflight(config, facts, {}), name);
}

}  // namespace

TEST_CASE("the defaults on a plain machine pass every check") {
  const auto checks = preflight(config::Config{}, appliance::machine(1, 4), {});
  for (const auto& check : checks) {
    CAPTURE(check.name, check.finding);
    CHECK(check.level == CheckLevel::kOk);
  }
  CHECK(may_start(checks).ok());
}

TEST_CASE("a receive buffer above the kernel's limit is a warning, or fine with CAP_NET_ADMIN") {
  auto facts = appliance::machine(1, 4);
  facts.receive_buffer_max = 212'992;
  const auto warned = check_of(config::Config{}, facts, "receive-buffer");
  CHECK(warned.level == CheckLevel::kWarn);
  CHECK_THAT(warned.remedy, Catch::Contains("sysctl -w net.core.rmem_max=8388608"));
  facts.can_force_buffers = true;
  CHECK(check_of(config::Config{}, facts, "receive-buffer").level == CheckLevel::kOk);
}

TEST_CASE("an address that the host does not have fails, and the remedy lists those it has") {
  auto facts = appliance::machine(1, 4);
  appliance::add_nic(facts, 0);
  auto config = appliance::open_config();
  config.box.listen = "192.0.2.1";
  const auto failed = check_of(config, facts, "listen");
  CHECK(failed.level == CheckLevel::kFail);
  CHECK_THAT(failed.finding, Catch::Contains("box.listen = 192.0.2.1"));
  CHECK_THAT(failed.remedy, Catch::Contains("10.0.0.1"));
  config.box.listen = "10.0.0.1";
  CHECK(check_of(config, facts, "listen").level == CheckLevel::kOk);
}

TEST_CASE("a port that is taken fails, and the remedy is a command that names the taker") {
  const PortProbe taken{"control.port", "127.0.0.1", 9541, false, EADDRINUSE};
  const auto checks = preflight(config::Config{}, appliance::machine(1, 4), {taken});
  const auto failed = find(checks, "ports");
  CHECK(failed.level == CheckLevel::kFail);
  CHECK_THAT(failed.remedy, Catch::Contains("ss -tlnp 'sport = :9541'"));
  const Status status = may_start(checks);
  REQUIRE_FALSE(status);
  CHECK(status.error().message == "ports: " + failed.finding + ". Remedy: " + failed.remedy);
}

TEST_CASE("running without keys off loopback is allowed when named, and never silent") {
  CHECK(check_of(config::Config{}, appliance::machine(1, 4), "security").level == CheckLevel::kOk);
  config::Config keyed;
  keyed.security.keys = "/etc/pbox/keys";
  const auto closed = check_of(keyed, appliance::machine(1, 4), "security");
  CHECK(closed.level == CheckLevel::kOk);
  CHECK_THAT(closed.finding, Catch::Contains("keys protect"));
  keyed.box.listen = "10.0.0.1";
  CHECK(check_of(keyed, appliance::machine(1, 4), "security").level == CheckLevel::kOk);
  keyed.admin.listen = "10.0.0.1";  // with TLS, because there are keys
  CHECK(check_of(keyed, appliance::machine(1, 4), "security").level == CheckLevel::kOk);
  keyed.admin.tls = config::OnOffAuto::kOff;
  const auto open = check_of(keyed, appliance::machine(1, 4), "security");
  CHECK(open.level == CheckLevel::kWarn);
  CHECK_THAT(open.finding, Catch::Contains("keys protect") && Catch::Contains("without TLS"));
  CHECK(check_of(appliance::open_config(), appliance::machine(1, 4), "security").level ==
        CheckLevel::kWarn);
}

TEST_CASE("cores outside the cpuset fail with both sets named") {
  config::Config config;
  config.pipeline.cores = {1, 6};
  const auto checks = preflight(config, appliance::machine(1, 4), {});
  CHECK_THAT(find(checks, "cpus").finding, Catch::Contains("0-3") && Catch::Contains("names 6"));
  CHECK(find(checks, "topology").level == CheckLevel::kFail);
}

TEST_CASE("a busy pipeline on the only core is a warning") {
  config::Config config;
  config.pipeline.poll = config::PollMode::kBusy;
  CHECK(check_of(config, appliance::machine(1, 1), "cpus").level == CheckLevel::kWarn);
}

TEST_CASE("hugepages are asked for where pipelines have cores of their own") {
  CHECK(check_of(config::Config{}, appliance::machine(1, 2), "hugepages").level == CheckLevel::kOk);
  auto facts = appliance::machine(2, 8);
  facts.nodes[0].hugepages_free = facts.nodes[0].hugepages_total = 64;
  const auto warned = check_of(config::Config{}, facts, "hugepages");
  CHECK(warned.level == CheckLevel::kWarn);
  CHECK_THAT(warned.finding, Catch::Contains("pipelines 7-13"));
}

TEST_CASE("a share that leaves too little for the rest is a warning") {
  config::Config config;
  config.memory.job_share = 0.98;
  auto facts = appliance::machine(1, 2);
  facts.memory_limit_bytes = 4ull << 30;
  CHECK(check_of(config, facts, "memory").level == CheckLevel::kWarn);
  config.memory.job_share = 0.85;
  CHECK(check_of(config, facts, "memory").level == CheckLevel::kOk);
}

TEST_CASE("an mtu wider than a NIC that is used fails") {
  auto facts = appliance::machine(1, 2);
  appliance::add_nic(facts, 0).mtu = 1500;
  auto config = appliance::open_config();
  config.data.mtu = 9000;
  const auto failed = check_of(config, facts, "mtu");
  CHECK(failed.level == CheckLevel::kFail);
  CHECK_THAT(failed.finding, Catch::Contains("eth0 has 1500"));
}

TEST_CASE("probing finds the port that somebody listens on, and frees the others") {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  REQUIRE(listener >= 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  REQUIRE(listen(listener, 1) == 0);
  socklen_t length = sizeof(address);
  REQUIRE(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) == 0);

  config::Config config;
  config.control.port = ntohs(address.sin_port);
  config.admin.port = 0;
  config.data.port_first = 0;
  const auto taken = probe_ports(config, 2);
  REQUIRE(taken.size() == 1);
  CHECK(taken[0].key == "control.port");
  CHECK(taken[0].error_number == EADDRINUSE);
  close(listener);
  CHECK(probe_ports(config, 2)[0].error_number == 0);
  CHECK(probe_ports(config, 2)[0].error_number == 0);
}

TEST_CASE("every planned data port is probed") {
  config::Config config;
  config.control.port = config.admin.port = 0;
  config.data.port_first = 47'001;
  const auto probes = probe_ports(config, 3);
  REQUIRE(probes.size() == 3);
  CHECK(probes[2].port == 47'003);
  CHECK(probes[2].is_udp);
}

}  // namespace pbox::preflight::preflight_test
