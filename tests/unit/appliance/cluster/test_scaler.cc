#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "appliance/cluster/scaler.h"
#include "tests/unit/appliance/cluster/part_maps_cluster.h"

namespace pbox::cluster {
namespace {

using Catch::Contains;
using Json = nlohmann::json;
using Kind = placement::ScaleDecision::Kind;

// Two boxes, of which the first one leads and scales.
struct ScalingCluster : Cluster {
  // While all memory of the boxes is free, none is short. With boxes_min 2 no box is spare.
  explicit ScalingCluster(uint32_t boxes_min = 2) {
    for (size_t index = 0; index < 2; ++index) {
      box(index).report.set_memory_free_bytes(kJobMemory);
    }
    scaler.emplace(desk.context, *store, box(0).box_directory, box(0).maps,
                   Scaler::Options{.self = "a",
                                   .cluster = "rack",
                                   .scales = true,
                                   .rules = {.boxes_min = boxes_min, .after_s = 0.5},
                                   .report = [this] { return box(0).report; },
                                   .hook =
                                       [this](const std::string& line, auto done) {
                                         lines.push_back(Json::parse(line));
                                         done(hook_result);
                                       },
                                   .log =
                                       [this](auto, const char* event, const std::string& text) {
                                         log += std::string(event) + ": " + text + "\n";
                                       }});
  }
  // Returns once the scaler has heard of all boxes.
  void await_reports() {
    REQUIRE(desk.run_until(
        [&] { return scaler->view().pressure && box(0).maps.reports().all().contains("b"); }));
  }
  bool await_lines(size_t count) {
    return desk.run_until([&] { return lines.size() >= count; });
  }

  std::vector<Json> lines;
  Status hook_result = ok_status();
  std::string log;
  std::optional<Scaler> scaler;
};

}  // namespace

TEST_CASE("a standby takes parts once a job has found no room") {
  ScalingCluster cluster(1);
  cluster.set_duty("b", Duty::kStandby);
  cluster.await_reports();
  CHECK(cluster.box(0).maps.duty_of("b") == Duty::kStandby);
  cluster.box(0).report.set_refusals(1);
  REQUIRE(cluster.desk.run_until(
      [&] { return cluster.box(0).maps.duty_of("b") == Duty::kTakesParts; }));
  REQUIRE(cluster.scaler->view().decisions.size() >= 1);
  CHECK(cluster.scaler->view().decisions[0].decision.kind == Kind::kUseStandby);
  CHECK(cluster.scaler->view().counts[static_cast<size_t>(Kind::kUseStandby)] == 1);
  CHECK_THAT(cluster.log, Contains("scale: box b, a standby, takes parts"));
}

TEST_CASE("without a standby the hook is asked for a box, and a failure of it is counted") {
  ScalingCluster cluster;
  const bool fails = GENERATE(false, true);
  if (fails) cluster.hook_result = Error{ErrorCode::kSystem, "exited with status 3"};
  cluster.await_reports();
  cluster.box(1).report.set_refusals(1);
  REQUIRE(cluster.await_lines(1));
  const Json& line = cluster.lines[0];
  CHECK(line["event"] == "scale_out");
  CHECK(line["cluster"] == "rack");
  CHECK(line["boxes"] == Json({"a", "b"}));
  CHECK(line["switched_off"] == Json::array());
  CHECK_THAT(line["reason"].get<std::string>(), Contains("no room"));
  CHECK_FALSE(line.contains("box"));
  CHECK(cluster.scaler->view().hook_failures == (fails ? 1 : 0));
  CHECK(fails == (cluster.log.find("exited with status 3") != std::string::npos));
}

TEST_CASE("a spare box becomes a standby, and may stop when it has no part left") {
  ScalingCluster cluster(1);
  // Two of the box's parts stay for now.
  cluster.box(0).report.set_memory_free_bytes(0);
  REQUIRE(cluster.ask(0, question(kBytes)).ok());
  REQUIRE(cluster.await_equal_maps());
  const size_t parts = cluster.parts_on("b");
  REQUIRE(parts > 0);
  cluster.set_duty("b", Duty::kStandby);
  REQUIRE(cluster.desk.run_until([&] { return !cluster.box(0).maps.drain_obstacle("b").empty(); }));
  CHECK(cluster.lines.empty());
  cluster.box(0).report.set_memory_free_bytes(kJobMemory);
  REQUIRE(cluster.await_lines(1));
  CHECK(cluster.parts_on("b") == 0);
  CHECK(cluster.lines[0]["event"] == "scale_in");
  CHECK(cluster.lines[0]["box"] == "b");
  CHECK_THAT(cluster.log, Contains("box_may_stop: box b"));
}

TEST_CASE("a standby that has copies of other boxes' parts may not stop") {
  ScalingCluster cluster(1);
  cluster.box(1).report.set_memory_free_bytes(kJobMemory - 1);
  cluster.set_duty("b", Duty::kStandby);
  cluster.await_reports();
  // A third box, empty from the start, shows that the second one has had its turn.
  cluster.add("c");
  cluster.box(2).report.set_memory_free_bytes(kJobMemory);
  cluster.set_duty("c", Duty::kStandby);
  REQUIRE(cluster.await_lines(1));
  CHECK(cluster.lines[0]["box"] == "c");
  cluster.box(1).report.set_memory_free_bytes(kJobMemory);
  REQUIRE(cluster.await_lines(2));
  CHECK(cluster.lines[1]["event"] == "scale_in");
  CHECK(cluster.lines[1]["box"] == "b");
}

TEST_CASE("the hook is not told again of a box that has missed a report") {
  ScalingCluster cluster(1);
  cluster.set_duty("b", Duty::kStandby);
  REQUIRE(cluster.await_lines(1));
  CHECK(cluster.lines[0]["box"] == "b");
  tcp::acceptor& acceptor = cluster.box(1).acceptor;
  const tcp::endpoint endpoint = acceptor.local_endpoint();
  const auto reports = [&] { return cluster.box(0).maps.reports().all().contains("b"); };
  acceptor.close();
  REQUIRE(cluster.desk.run_until([&] { return !reports(); }));
  acceptor.open(endpoint.protocol());
  acceptor.set_option(tcp::acceptor::reuse_address(true));
  acceptor.bind(endpoint);
  acceptor.listen();
  cluster.box(1).answer();
  REQUIRE(cluster.desk.run_until(reports));
  // The next line is about a box that is empty from now on, not about the first one.
  cluster.add("c");
  cluster.box(2).report.set_memory_free_bytes(kJobMemory);
  cluster.set_duty("c", Duty::kStandby);
  REQUIRE(cluster.await_lines(2));
  CHECK(cluster.lines[1]["box"] == "c");
}

TEST_CASE("the leader empties a box that the others can replace") {
  ScalingCluster cluster(1);
  REQUIRE(cluster.ask(0, question(kBytes)).ok());
  REQUIRE(cluster.await_lines(1));
  CHECK(cluster.box(0).maps.duty_of("b") == Duty::kStandby);
  CHECK(cluster.box(0).maps.duty_of("a") == Duty::kTakesParts);
  CHECK(cluster.lines[0]["event"] == "scale_in");
  CHECK(cluster.lines[0]["box"] == "b");
  CHECK(cluster.parts_on("b") == 0);
}

TEST_CASE("another memory for jobs reaches the record that the other boxes read") {
  Cluster cluster;
  cluster.box(1).box_directory.set_job_memory(7);
  CHECK(cluster.desk.run_until([&] {
    const BoxRecord* record = cluster.box(0).box_directory.last_record("b");
    return record != nullptr && record->job_memory_bytes == 7;
  }));
}

TEST_CASE("a box that begins as a standby takes no parts, unless it has some from before") {
  const bool has_parts = GENERATE(false, true);
  Cluster cluster;
  if (has_parts) {
    REQUIRE(cluster.ask(0, question(kBytes)).ok());
    REQUIRE(cluster.await_equal_maps());
    REQUIRE(cluster.parts_on("b") > 0);
  }
  const auto make = [&](const std::string& self, bool begins_as_standby) {
    return std::make_unique<Scaler>(
        cluster.desk.context, *cluster.store, cluster.box(1).box_directory, cluster.box(1).maps,
        Scaler::Options{.self = self,
                        .begins_as_standby = begins_as_standby,
                        .report = [] { return proto::BoxReport(); },
                        .log = [](auto, const char*, const std::string&) {}});
  };
  const auto scaler = make("b", true);
  if (!has_parts) {
    CHECK(
        cluster.desk.run_until([&] { return cluster.box(0).maps.duty_of("b") == Duty::kStandby; }));
    return;
  }
  // A third box without parts, which begins later, shows that the second one has had its turn.
  const auto later = make("c", true);
  REQUIRE(
      cluster.desk.run_until([&] { return cluster.box(0).maps.duty_of("c") == Duty::kStandby; }));
  CHECK(cluster.box(0).maps.duty_of("b") == Duty::kTakesParts);
}

}  // namespace pbox::cluster
