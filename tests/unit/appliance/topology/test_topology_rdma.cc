#include <algorithm>
#include <catch2/catch.hpp>

#include "appliance/preflight/preflight.h"
#include "tests/unit/appliance/machines.h"

namespace pbox::topology {
namespace {

using Catch::Contains;

host::RdmaFacts device(const std::string& name, int node, const std::string& interface = "") {
  host::RdmaFacts facts;
  facts.name = name;
  facts.node = node;
  facts.interface = interface;
  facts.is_active = facts.is_accessible = true;
  return facts;
}

config::Config rdma_config() {
  auto config = appliance::open_config();
  config.data.port = config::PortKind::kRdma;
  return config;
}

std::string refusal(const config::Config& config, const host::HostFacts& facts) {
  const auto topology = plan(config, facts);
  return topology ? "planned" : topology.error().message;
}

preflight::Check check_of(const config::Config& config, const host::HostFacts& facts,
                          const std::string& name) {
  const auto checks = preflight::preflight(config, facts, {});
  const auto found = std::find_if(checks.begin(), checks.end(), [&](const preflight::Check& check) {
    return check.name == name;
  });
  REQUIRE(found != checks.end());
  return *found;
}

}  // namespace

TEST_CASE("each pipeline gets the RDMA device of its NIC, though others are as near") {
  auto facts = appliance::machine(2, 8);
  const std::string first = appliance::add_nic(facts, 0).name;
  const std::string second = appliance::add_nic(facts, 1).name;
  facts.rdma = {device("a", 0), device("b", 0, first), device("c", 1, second), device("d", 1)};
  const auto topology = plan(rdma_config(), facts);
  REQUIRE(topology);
  for (const auto& pipeline : topology->pipelines) {
    CHECK(pipeline.rdma_device == (pipeline.nic == first ? "b" : "c"));
  }
  CHECK(appliance::has_reason(*topology, "because it is on the pipeline's NIC, " + first));
  CHECK(appliance::has_reason(*topology, "RDMA device d serves no pipeline"));
}

TEST_CASE("without a NIC's own, RDMA devices of the node share its pipelines evenly") {
  auto facts = appliance::machine(2, 8);
  facts.rdma = {device("a", 0), device("b", 0), device("c", 1), device("d", host::kUnknownNode)};
  auto config = rdma_config();
  config.box.listen = "127.0.0.1";
  config.rdma.devices = {"a", "b", "c"};
  config.pipeline.count = 4;
  const auto topology = plan(config, facts);
  REQUIRE(topology);
  std::vector<std::string> used;
  for (const auto& pipeline : topology->pipelines) {
    used.push_back(pipeline.rdma_device);
    CHECK((pipeline.rdma_device == "c") == (pipeline.node == 1));
  }
#ifdef PBOX_HAS_RDMA
  // Each node has the buffers of two pipelines. Jobs cannot have that memory.
  CHECK(topology->nodes[0].packet_memory_bytes > 0);
  CHECK(topology->nodes[0].packet_memory_bytes == topology->nodes[1].packet_memory_bytes);
  auto on_sockets = config;
  on_sockets.data.port = config::PortKind::kSocket;
  on_sockets.rdma = {};
  CHECK(topology->job_memory_bytes < plan(on_sockets, facts)->job_memory_bytes);
  // Slots that workers write to take more memory.
  auto written = config;
  written.rdma.mode = config::RdmaMode::kWriteImm;
  const auto larger = plan(written, facts);
  REQUIRE(larger);
  CHECK(larger->nodes[0].packet_memory_bytes >=
        topology->nodes[0].packet_memory_bytes + 2 * (40u << 20));
  CHECK(larger->job_memory_bytes < topology->job_memory_bytes);
#endif
  std::sort(used.begin(), used.end());
  CHECK(used == std::vector<std::string>{"a", "b", "c", "c"});
}

TEST_CASE("a plan whose data would cross nodes is refused, or, where that is allowed, explained") {
  auto facts = appliance::machine(2, 8);
  facts.rdma = {device("far", 1)};
  auto config = rdma_config();
  config.box.listen = "127.0.0.1";
  CHECK_THAT(refusal(config, facts), Contains("is on NUMA node 0") && Contains("far (node 1)") &&
                                         Contains("pipeline.numa = off"));
  config.pipeline.numa = config::OnOffAuto::kOff;
  const auto topology = plan(config, facts);
  REQUIRE(topology);
  CHECK(topology->pipelines[0].rdma_device == "far");
  CHECK(appliance::has_reason(*topology, "data may cross NUMA nodes"));
}

TEST_CASE("RDMA devices that are not there or have no link are refused by name") {
  auto facts = appliance::machine(1, 4);
  auto config = rdma_config();
  CHECK_THAT(refusal(config, facts), Contains("has no RDMA device with a link"));
  facts.rdma = {device("up", 0), device("down", 0, "eth7")};
  facts.rdma[1].is_active = false;
  config.rdma.devices = {"typo"};
  CHECK_THAT(refusal(config, facts), Contains("typo is not an RDMA device") &&
                                         Contains("up (node 0), down (eth7, node 0, no link)"));
  config.rdma.devices = {"down"};
  CHECK_THAT(refusal(config, facts), Contains("down has no link") && Contains("eth7"));
  config.rdma.devices = {};
  const auto topology = plan(config, facts);
  REQUIRE(topology);
  CHECK(topology->pipelines[0].rdma_device == "up");
  CHECK(appliance::has_reason(*topology, "RDMA device down: left out, it has no link"));
}

TEST_CASE("sockets have no RDMA device, whatever the machine has") {
  auto facts = appliance::machine(1, 4);
  facts.rdma = {device("up", 0)};
  const auto topology = plan(appliance::open_config(), facts);
  REQUIRE(topology);
  CHECK(topology->pipelines[0].rdma_device.empty());
}

TEST_CASE("preflight finds devices that may not be opened, and too little lockable memory") {
  auto facts = appliance::machine(1, 4);
  facts.rdma = {device("up", 0)};
  facts.memlock_bytes = host::kUnlimited;
  const auto config = rdma_config();
  CHECK(check_of(config, facts, "rdma-devices").level == preflight::CheckLevel::kOk);
  CHECK(check_of(config, facts, "memlock").level == preflight::CheckLevel::kOk);
  CHECK(check_of(config, facts, "security").level == preflight::CheckLevel::kWarn);
  facts.rdma[0].is_accessible = false;
  const preflight::Check closed = check_of(config, facts, "rdma-devices");
  CHECK(closed.level == preflight::CheckLevel::kFail);
  CHECK_THAT(closed.remedy, Contains("pboxd-rdma.conf"));
#ifdef PBOX_HAS_RDMA
  facts.memlock_bytes = 8u << 20;
  const preflight::Check little = check_of(config, facts, "memlock");
  CHECK(little.level == preflight::CheckLevel::kFail);
  CHECK_THAT(little.finding, Contains("8 MiB, but packets lock"));
  // This is enough for receive buffers, but too little for slots that workers write to.
  facts.memlock_bytes = 100u << 20;
  CHECK(check_of(config, facts, "memlock").level == preflight::CheckLevel::kWarn);
  auto written = config;
  written.rdma.mode = config::RdmaMode::kWriteImm;
  CHECK(check_of(written, facts, "memlock").level == preflight::CheckLevel::kFail);
  facts.memlock_bytes = 1u << 30;
  CHECK(check_of(config, facts, "memlock").level == preflight::CheckLevel::kWarn);
  facts.can_lock_memory = true;
  CHECK(check_of(config, facts, "memlock").level == preflight::CheckLevel::kOk);
#endif
}

}  // namespace pbox::topology
