// Part maps in a cluster whose boxes are of two releases.
#include "tests/unit/appliance/cluster/part_maps_cluster.h"

namespace pbox::cluster {
namespace {

using Catch::Contains;

constexpr milliseconds kKept = std::chrono::minutes(10);
constexpr wire::VersionRange kOlder{2, 2};
constexpr wire::VersionRange kTooNew{4, 5};

size_t count(const std::vector<std::string>& boxes, const std::string& box) {
  return static_cast<size_t>(std::count(boxes.begin(), boxes.end(), box));
}

proto::AskPartMap question_of_version(uint32_t version) {
  auto asked = question(kBytes);
  asked.set_job_version(version);
  return asked;
}

}  // namespace

TEST_CASE("parts of a job go to boxes of two releases if both have what the job uses") {
  Cluster cluster(kKept, kOlder);
  const auto boxes = boxes_of(*cluster.ask(0, question_of_version(2)));
  CHECK(count(boxes, "a") > 0);
  CHECK(count(boxes, "b") > 0);
}

TEST_CASE("no part goes to a box that lacks what the job uses, or with which boxes cannot talk") {
  SECTION("a new job that uses a field of version 3") {
    Cluster cluster(kKept, kOlder);
    const auto boxes = boxes_of(*cluster.ask(0, question_of_version(3)));
    CHECK(count(boxes, "a") == boxes.size());
    REQUIRE(cluster.await_equal_maps());
    CHECK(cluster.box(0).maps.maps().at(kJob).protocol_version == 3);
    CHECK(cluster.box(0).maps.backup_candidates(kJob, 0).empty());
    CHECK_FALSE(cluster.box(0).maps.can_serve("b", cluster.box(0).maps.maps().at(kJob)));
  }
  SECTION("a box that is two releases ahead") {
    Cluster cluster(kKept, kTooNew);
    const auto boxes = boxes_of(*cluster.ask(0, question_of_version(0)));
    CHECK(count(boxes, "a") == boxes.size());
  }
}

TEST_CASE("a drain says which boxes cannot take the parts because of their release") {
  Cluster cluster(kKept, kOlder);
  REQUIRE(cluster.ask(0, question_of_version(3)).ok());
  REQUIRE(cluster.await_equal_maps());
  cluster.set_duty("a", Duty::kDrains);
  REQUIRE(cluster.desk.run_until([&] { return !cluster.box(0).maps.drain_obstacle("a").empty(); }));
  CHECK_THAT(cluster.box(0).maps.drain_obstacle("a"),
             Contains("job 'resnet' stays on box a: no other box takes its parts") &&
                 Contains("because of their release: b (a release, control protocol 2)"));
  CHECK(cluster.parts_on("b") == 0);
}

TEST_CASE("a box on which a job runs states in its map which version the job needs") {
  Cluster cluster(kKept, kOlder);
  REQUIRE(cluster.ask(0, question_of_version(0)).ok());
  REQUIRE(cluster.await_equal_maps());
  cluster.box(0).has_job = true;
  cluster.box(0).running = control::RunningParts{true, 1000, 3};
  CHECK(cluster.desk.run_until([&] {
    return cluster.box(0).maps.maps().at(kJob).protocol_version == 3 &&
           cluster.box(1).maps.maps().at(kJob).protocol_version == 3;
  }));
}

}  // namespace pbox::cluster
