// Part maps: which boxes have room, and which maps are still of use.
#include "tests/unit/appliance/cluster/part_maps_cluster.h"

namespace pbox::cluster {

using Catch::Contains;

TEST_CASE("a start by mistake changes nothing in the map of a job that runs") {
  Cluster cluster;
  REQUIRE(cluster.ask(0, question(kBytes)).ok());
  REQUIRE(cluster.await_equal_maps());
  cluster.box(0).has_job = true;
  cluster.box(0).running = control::RunningParts{true, 1000};
  const PartMap before = cluster.box(1).maps.maps().at(kJob);
  auto mistaken = question(7);
  mistaken.set_may_move(false);
  const auto answer = cluster.ask(1, mistaken);
  REQUIRE(answer.ok());
  CHECK(boxes_of(*answer) == before.boxes);
  const auto memory = [&](size_t index) {
    return cluster.box(index).maps.maps().at(kJob).part_memory_bytes;
  };
  REQUIRE(cluster.desk.run_until([&] { return memory(0) == 1000 && memory(1) == 1000; }));
  const PartMap after = cluster.box(1).maps.maps().at(kJob);
  CHECK(after.may_move);
  CHECK(after.bytes == kBytes);
}

TEST_CASE("the box on which a job runs says whether its parts may move, whoever asked first") {
  Cluster cluster;
  REQUIRE(cluster.ask(0, question(kBytes)).ok());
  REQUIRE(cluster.await_equal_maps());
  cluster.box(1).has_job = true;
  cluster.box(1).running = control::RunningParts{false, 1000};
  const auto may_move = [&](size_t index) {
    return cluster.box(index).maps.maps().at(kJob).may_move;
  };
  CHECK(cluster.desk.run_until([&] { return !may_move(0) && !may_move(1); }));
}

TEST_CASE("the map of an ended job is not used again if a box of it drains, is gone or is full") {
  Cluster cluster;
  auto fixed = question(kBytes);
  fixed.set_may_move(false);  // so the leader leaves the parts where they are
  REQUIRE(cluster.ask(0, fixed).ok());
  REQUIRE(cluster.await_equal_maps());
  const auto boxes = cluster.owners_seen_by(0);
  cluster.end_job();
  SECTION("drains") {
    cluster.set_duty("b", Duty::kDrains);
    for (const std::string& box : boxes_of(*cluster.ask(0, fixed))) CHECK(box == "a");
  }
  SECTION("full") {
    cluster.box(1).report.set_memory_free_bytes(0);
    for (const std::string& box : boxes_of(*cluster.ask(0, fixed))) CHECK(box == "a");
  }
  SECTION("neither") {
    CHECK(boxes_of(*cluster.ask(0, fixed)) == boxes);
  }
}

TEST_CASE("the leader deletes a map that no box claims, and keeps one that any box claims") {
  Cluster cluster(milliseconds(600));
  REQUIRE(cluster.ask(0, question(kBytes)).ok());
  auto second = question(kBytes);
  second.set_job("vgg");
  REQUIRE(cluster.ask(0, second).ok());
  cluster.box(0).report.add_jobs("vgg");
  cluster.box(1).report.add_jobs("vgg");
  // Both boxes believe that they lead, and neither has the job itself.
  REQUIRE(cluster.desk.run_until([&] { return cluster.box(0).maps.maps().size() == 2; }));
  CHECK(cluster.desk.run_until([&] { return !cluster.box(0).maps.maps().contains(kJob); }));
  CHECK(cluster.box(0).maps.maps().contains("vgg"));
}

TEST_CASE(
    "parts of a box that drains go only where they have room, and the drain says what stays") {
  Cluster cluster;
  REQUIRE(cluster.ask(0, question(kBytes)).ok());
  REQUIRE(cluster.await_equal_maps());
  cluster.box(0).has_job = true;
  constexpr uint64_t kEach = 64u << 20;
  cluster.box(0).running = control::RunningParts{true, kEach};
  const size_t before = cluster.parts_on("b");
  REQUIRE(before > 6);
  cluster.box(0).report.set_memory_free_bytes(3 * kEach + 1);
  REQUIRE(cluster.desk.run_until([&] {
    return cluster.box(0).maps.maps().at(kJob).part_memory_bytes == kEach &&
           cluster.box(1).maps.maps().at(kJob).part_memory_bytes == kEach;
  }));
  cluster.box(1).report = cluster.box(0).report;
  cluster.set_duty("b", Duty::kDrains);
  REQUIRE(cluster.desk.run_until([&] { return cluster.parts_on("b") < before; }));
  cluster.box(0).report.set_memory_free_bytes(0);
  REQUIRE(cluster.desk.run_until([&] { return !cluster.box(1).maps.drain_obstacle("b").empty(); }));
  CHECK_THAT(cluster.box(1).maps.drain_obstacle("b"),
             Contains("no other box has room") && Contains("job 'resnet'"));
  // Both boxes believe that they lead, so each may have moved as many parts as there was room for.
  const size_t moved = before - cluster.parts_on("b");
  CHECK((moved == 3 || moved == 6));
  cluster.set_duty("b", Duty::kStandby);  // a standby is emptied too, and has the same obstacle
  CHECK_THAT(cluster.box(1).maps.drain_obstacle("b"), Contains("no other box has room"));
  cluster.box(0).report.set_memory_free_bytes(100 * kEach);
  CHECK(cluster.desk.run_until([&] { return cluster.parts_on("b") == 0; }));
  CHECK(cluster.desk.run_until([&] { return cluster.box(1).maps.drain_obstacle("b").empty(); }));
}

TEST_CASE("a drain names every job whose parts stay, with the present number of them") {
  Cluster cluster;
  proto::AskPartMap other = question(kBytes);
  other.set_job("vgg");
  REQUIRE(cluster.ask(0, question(kBytes)).ok());
  REQUIRE(cluster.ask(0, other).ok());
  for (size_t index = 0; index < 2; ++index) {
    cluster.box(index).has_job = true;
    cluster.box(index).report.set_memory_free_bytes(0);
  }
  cluster.set_duty("b", Duty::kDrains);
  const auto says = [&](const std::string& text) {
    return cluster.desk.run_until(
        [&] { return cluster.box(0).maps.drain_obstacle("b").find(text) != std::string::npos; });
  };
  const auto stay = [&] {
    return std::to_string(cluster.parts_on("b")) + " parts of job 'resnet'";
  };
  CHECK(says("parts of job 'resnet'"));
  CHECK(says("parts of job 'vgg'"));
  const std::string before = stay();
  CHECK(says(before));
  // There is room for one part. Some parts go, and the obstacle says how many stay.
  cluster.box(0).report.set_memory_free_bytes(
      cluster.box(0).maps.maps().at(kJob).memory_per_part() + 1);
  REQUIRE(cluster.desk.run_until([&] { return stay() != before; }));
  cluster.box(0).report.set_memory_free_bytes(0);
  CHECK(cluster.desk.run_until(
      [&] { return cluster.box(0).maps.drain_obstacle("b").find(stay()) != std::string::npos; }));
}

TEST_CASE("a drain names a job that cannot move") {
  Cluster cluster;
  proto::AskPartMap fixed = question(kBytes);
  fixed.set_may_move(false);
  REQUIRE(cluster.ask(0, fixed).ok());
  REQUIRE(cluster.await_equal_maps());
  cluster.set_duty("b", Duty::kDrains);
  REQUIRE(cluster.desk.run_until([&] { return !cluster.box(0).maps.drain_obstacle("b").empty(); }));
  CHECK_THAT(cluster.box(0).maps.drain_obstacle("b"),
             Contains("job 'resnet' stays on box b until it ends: it cannot move"));
  cluster.end_job();
  CHECK(cluster.desk.run_until([&] { return cluster.box(0).maps.drain_obstacle("b").empty(); }));
}

TEST_CASE("a box that has no slot for another job gets no part of a new one") {
  Cluster cluster;
  cluster.box(1).report.set_jobs_free(0);
  for (const std::string& box : boxes_of(*cluster.ask(0, question(kBytes)))) CHECK(box == "a");
}

TEST_CASE("a box without room hands a part to one that has room, or keeps it") {
  Cluster cluster;
  REQUIRE(cluster.ask(0, question(kBytes)).ok());
  REQUIRE(cluster.await_equal_maps());
  const auto boxes = cluster.owners_seen_by(1);
  const auto part =
      static_cast<uint32_t>(std::find(boxes.begin(), boxes.end(), "b") - boxes.begin());
  CHECK_FALSE(cluster.box(0).maps.hand_back(kJob, part));  // it is not this box's part
  SECTION("another box has room") {
    REQUIRE(cluster.box(1).maps.hand_back(kJob, part));
    CHECK(cluster.desk.run_until([&] { return cluster.owners_seen_by(1)[part] == "a"; }));
  }
  SECTION("no box has room") {
    cluster.box(0).report.set_memory_free_bytes(0);
    REQUIRE(cluster.box(1).maps.hand_back(kJob, part));
    CHECK(cluster.desk.run_until([&] { return !cluster.box(1).maps.hand_back(kJob, part); }));
    CHECK(cluster.owners_seen_by(1) == boxes);
  }
}

TEST_CASE("a move that overfills a box is found before it is made") {
  Cluster cluster;
  REQUIRE(cluster.ask(0, question(kBytes)).ok());
  REQUIRE(cluster.await_equal_maps());
  PartMap map = cluster.box(0).maps.maps().at(kJob);
  CHECK_FALSE(cluster.box(0).maps.lacks_room(kJob, map));
  std::fill(map.boxes.begin(), map.boxes.end(), "a");
  CHECK_FALSE(cluster.box(0).maps.lacks_room(kJob, map));
  cluster.box(0).report.set_parts_free(1);
  const auto why = cluster.box(0).maps.lacks_room(kJob, map);
  REQUIRE(why);
  CHECK_THAT(*why, Contains("box a has room for 1 more parts"));
}

TEST_CASE("one box at a time takes a snapshot of a job") {
  Cluster cluster;
  const auto claim = [&](size_t box, const std::string& job) {
    std::optional<Status> claimed;
    cluster.box(box).maps.claim_snapshot(job, [&](const Status& status) { claimed = status; });
    REQUIRE(cluster.desk.run_until([&] { return claimed.has_value(); }));
    return *claimed;
  };
  // The key belongs to another box's session.
  REQUIRE(cluster.desk.commit(*cluster.store, {{}, {{"snapshots/vgg", "c", false}}, {}}).ok());
  const Status refused = claim(0, "vgg");
  REQUIRE_FALSE(refused.ok());
  CHECK_THAT(refused.error().message, Contains("box c takes a snapshot of job 'vgg'"));
  cluster.box(0).maps.release_snapshot("vgg");  // never claimed
  CHECK(cluster.desk.get(*cluster.store, "snapshots/")->entries.size() == 1);

  CHECK(claim(0, kJob).ok());
  CHECK(claim(0, kJob).ok());  // its own, from a run that ended without being released
  CHECK(cluster.desk.get(*cluster.store, "snapshots/")->entries.size() == 2);
  cluster.box(0).maps.release_snapshot(kJob);
  CHECK(cluster.desk.run_until(
      [&] { return cluster.desk.get(*cluster.store, "snapshots/")->entries.size() == 1; }));
}

}  // namespace pbox::cluster
