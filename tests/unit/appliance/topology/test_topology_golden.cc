#include <catch2/catch.hpp>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "appliance/topology/print.h"
#include "config/parse.h"
#include "tests/unit/appliance/machines.h"

namespace pbox::topology {
namespace {

const std::string kFolder = PBOX_GOLDEN_FOLDER;

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  REQUIRE(file);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

Topology golden_plan(const std::string& name = "pbox-2x14-10nic") {
  const auto outcome = config::parse_file(kFolder + "/" + name + ".conf");
  REQUIRE(outcome.config);
  const auto facts = host::load_host_facts(kFolder + "/" + name + ".xml");
  REQUIRE(facts);
  const auto topology = plan(*outcome.config, *facts);
  REQUIRE(topology);
  return *topology;
}

}  // namespace

// To renew the file after an intended change:
//   pboxctl plan --config F.conf --topology F.xml > F.plan    (F = pbox-2x14-10nic, or with -dpdk)
TEST_CASE("the plan for PBox's own machine is the golden one") {
  CHECK(to_text(golden_plan()) == text_of(kFolder + "/pbox-2x14-10nic.plan"));
}

TEST_CASE("on PBox's own machine five NICs per socket share its cores equally and never cross") {
  const Topology topology = golden_plan();
  std::map<int, std::map<std::string, int>> pipelines_by_nic;
  for (const auto& pipeline : topology.pipelines) {
    ++pipelines_by_nic[pipeline.node][pipeline.nic];
    CHECK(pipeline.node == pipeline.cpu / 14);
    CHECK(pipeline.cpu < 28);  // a first thread
    CHECK(pipeline.pinned);
  }
  REQUIRE(pipelines_by_nic.size() == 2);
  for (const auto& [node, nics] : pipelines_by_nic) {
    CHECK(nics.size() == 5);
    for (const auto& [name, count] : nics) CHECK(count == 2);
  }
}

TEST_CASE("the plan for PBox's own machine with its NICs under DPDK is the golden one") {
  CHECK(to_text(golden_plan("pbox-2x14-10nic-dpdk")) ==
        text_of(kFolder + "/pbox-2x14-10nic-dpdk.plan"));
}

TEST_CASE("under DPDK the same cores serve the same NICs as with sockets") {
  const Topology sockets = golden_plan();
  const Topology dpdk = golden_plan("pbox-2x14-10nic-dpdk");
  REQUIRE(dpdk.pipelines.size() == sockets.pipelines.size());
  for (size_t i = 0; i < dpdk.pipelines.size(); ++i) {
    CHECK(dpdk.pipelines[i].cpu == sockets.pipelines[i].cpu);
    CHECK(dpdk.pipelines[i].address == sockets.pipelines[i].address);
    CHECK(dpdk.pipelines[i].queue == sockets.pipelines[i].queue);
    CHECK(dpdk.pipelines[i].devices == std::vector<uint32_t>{static_cast<uint32_t>(i / 2)});
    CHECK(sockets.pipelines[i].devices.empty());
  }
}

TEST_CASE("the JSON of a plan says what the plan says") {
  const Topology topology = golden_plan("pbox-2x14-10nic-dpdk");
  const auto object = nlohmann::json::parse(to_json(topology));
  REQUIRE(object["pipelines"].size() == topology.pipelines.size());
  for (size_t i = 0; i < topology.pipelines.size(); ++i) {
    const auto& expected = topology.pipelines[i];
    const auto& pipeline = object["pipelines"][i];
    CHECK(pipeline["cpu"] == expected.cpu);
    CHECK(pipeline["nic"] == expected.nic);
    CHECK(pipeline["queue"] == expected.queue);
    CHECK(pipeline["udp_port"] == expected.udp_port);
    CHECK(pipeline["devices"] == expected.devices);
    CHECK(pipeline["arena_bytes"] == expected.arena_bytes);
  }
  CHECK(object["nodes"][1]["packet_memory_bytes"] == topology.nodes[1].packet_memory_bytes);
  CHECK(object["reasons"] == topology.reasons);
}

}  // namespace pbox::topology
