// Part maps of jobs, as the boxes of one cluster make and change them.
#include <ctime>

#include "base/limits.h"
#include "tests/unit/appliance/cluster/part_maps_cluster.h"

namespace pbox::cluster {

using Catch::Contains;

namespace {

// A store whose commits fail.
class FailingStore : public Store {
 public:
  explicit FailingStore(Store& store) : store_(store) {}
  void start(Observer) override {}
  void get(const std::string& prefix, std::function<void(Result<Snapshot>)> done) override {
    store_.get(prefix, std::move(done));
  }
  void commit(Transaction, std::function<void(Result<Outcome>)> done) override {
    done(commit_error);
  }
  std::unique_ptr<Watch> watch(const std::string& prefix, int64_t revision,
                               WatchHandler handler) override {
    return store_.watch(prefix, revision, std::move(handler));
  }
  int64_t session() const override { return store_.session(); }
  const Health& health() const override { return store_.health(); }

  Error commit_error;

 private:
  Store& store_;
};

}  // namespace

TEST_CASE("boxes that are asked at the same time answer with one map, with parts on both") {
  Cluster cluster;
  std::vector<std::vector<std::string>> answers;
  for (size_t index : {0u, 1u, 0u}) {
    cluster.box(index).maps.ask(question(kBytes), [&](const auto& map) {
      REQUIRE(map.ok());
      answers.push_back(boxes_of(*map));
    });
  }
  REQUIRE(cluster.desk.run_until([&] { return answers.size() == 3; }));
  CHECK(answers[1] == answers[0]);
  CHECK(answers[2] == answers[0]);
  REQUIRE(cluster.await_equal_maps());
  CHECK(cluster.owners_seen_by(0) == answers[0]);
  CHECK(cluster.parts_on("a") == cluster.parts_on("b"));
}

TEST_CASE("the owner of a part is this box, another box with its address, or unknown") {
  Cluster cluster;
  PartMaps& maps = cluster.box(0).maps;
  const auto before = maps.other_owner(kJob, 0, 4);
  CHECK(before.error().code == ErrorCode::kUnavailable);
  REQUIRE(cluster.ask(0, question(kBytes)).ok());
  REQUIRE(cluster.await_equal_maps());
  const auto boxes = cluster.owners_seen_by(0);
  const auto parts = static_cast<uint32_t>(boxes.size());
  for (uint32_t part = 0; part < parts; ++part) {
    const auto place = maps.other_owner(kJob, part, parts);
    REQUIRE(place.ok());
    CHECK(place->has_value() == (boxes[part] != "a"));
    if (place->has_value()) CHECK((*place)->address() == cluster.box(1).record("b").control);
  }
  const auto others = maps.other_owner(kJob, 0, parts + 1);
  CHECK(others.error().code == ErrorCode::kMismatch);
  CHECK_THAT(others.error().message, Contains("start all ranks again"));
}

TEST_CASE("a part number that a worker's own count of parts excludes is refused") {
  Cluster cluster;
  REQUIRE(cluster.ask(0, question(kBytes)).ok());
  REQUIRE(cluster.await_equal_maps());
  const auto parts = static_cast<uint32_t>(cluster.owners_seen_by(0).size());
  for (const uint32_t part : {parts, parts + 1, UINT32_MAX}) {
    const auto place = cluster.box(0).maps.other_owner(kJob, part, parts);
    REQUIRE_FALSE(place.ok());
    CHECK(place.error().code == ErrorCode::kInvalidArgument);
    CHECK_THAT(place.error().message, Contains("out of range"));
  }
}

TEST_CASE("a worker that has lost its box does not create a map if there is none") {
  Cluster cluster;
  CHECK(cluster.ask(0, question(0, "b")).error().code == ErrorCode::kUnavailable);
  CHECK(cluster.owners_seen_by(0).empty());
}

TEST_CASE("a box that a worker cannot reach keeps its parts while it answers other boxes") {
  Cluster cluster;
  REQUIRE(cluster.ask(0, question(kBytes)).ok());
  REQUIRE(cluster.await_equal_maps());
  const auto before = cluster.owners_seen_by(0);
  const auto reachable = cluster.ask(0, question(0, "b"));
  REQUIRE(reachable.ok());
  CHECK(boxes_of(*reachable) == before);
  cluster.box(1).acceptor.close();
  const auto gone = cluster.ask(0, question(0, "b"));
  REQUIRE(gone.ok());
  for (const std::string& box : boxes_of(*gone)) CHECK(box == "a");
}

TEST_CASE("a box that one worker cannot reach for a long time loses its parts and is avoided") {
  Cluster cluster;
  REQUIRE(cluster.ask(0, question(kBytes)).ok());
  REQUIRE(cluster.await_equal_maps());
  const auto before = cluster.owners_seen_by(0);
  auto lost = question(0, "b");
  cluster.box(1).up_for_ms = 60'000;
  lost.set_lost_for_ms(1'400);  // below the limit of 1.5 s
  CHECK(boxes_of(*cluster.ask(0, lost)) == before);
  lost.set_lost_for_ms(1'600);
  cluster.box(1).up_for_ms = 2'000;  // the box itself was down, not the path to it
  CHECK(boxes_of(*cluster.ask(0, lost)) == before);
  cluster.box(1).up_for_ms = 60'000;
  for (const std::string& box : boxes_of(*cluster.ask(0, lost))) CHECK(box == "a");
  const std::vector<std::string> all_on_a(before.size(), "a");
  REQUIRE(cluster.desk.run_until([&] { return cluster.owners_seen_by(0) == all_on_a; }));
  REQUIRE(cluster.await_equal_maps());
  const PartMap map = cluster.box(0).maps.maps().at(kJob);
  const auto now = static_cast<uint64_t>(std::time(nullptr));
  CHECK(map.avoids("b", now));
  CHECK_FALSE(map.avoids("b", now + 601));
  CHECK_FALSE(map.avoids("a", now));
  // With a third box no part goes to the avoided box; without a third box parts do go there.
  cluster.add("c");
  cluster.boxes[2]->box_directory.on_session();
  REQUIRE(cluster.desk.run_until([&] { return cluster.box(1).box_directory.boxes().size() == 3; }));
  cluster.box(0).acceptor.close();
  for (const std::string& box : boxes_of(*cluster.ask(1, question(0, "a")))) CHECK(box == "c");
  REQUIRE(cluster.desk.run_until([&] { return cluster.owners_seen_by(1) != all_on_a; }));
  cluster.box(2).acceptor.close();
  for (const std::string& box : boxes_of(*cluster.ask(1, question(0, "c")))) CHECK(box != "c");
}

TEST_CASE(
    "with keys, a box that answers loses its parts once it says that most ranks are cut off") {
  Cluster cluster(std::chrono::minutes(10), {}, true);
  REQUIRE(cluster.ask(0, question(kBytes)).ok());
  REQUIRE(cluster.await_equal_maps());
  const auto before = cluster.owners_seen_by(0);
  Box& b = cluster.box(1);
  b.up_for_ms = 60'000;
  b.majority = 4;
  const auto report = [](uint32_t rank, uint32_t lost_for_ms = 1'600) {
    auto lost = question(0, "b");
    lost.set_rank(rank);
    lost.set_lost_for_ms(lost_for_ms);
    return lost;
  };
  CHECK(boxes_of(*cluster.ask(0, report(7, 1'400))) == before);
  CHECK(b.cut_off.empty());
  CHECK(boxes_of(*cluster.ask(0, report(7))) == before);
  CHECK(b.cut_off == std::vector<uint32_t>{7});
  // Reports that arrive while the box is asked are not forgotten.
  std::vector<std::vector<std::string>> answers;
  for (const uint32_t rank : {1u, 2u, 1u, limits::kWorkersPerJobMax}) {
    cluster.box(0).maps.ask(report(rank),
                            [&](const auto& map) { answers.push_back(boxes_of(*map)); });
  }
  REQUIRE(cluster.desk.run_until([&] { return answers.size() == 4; }));
  CHECK(b.cut_off == std::vector<uint32_t>{7, 1, 1, 2});
  for (const auto& answer : answers) {
    for (const std::string& box : answer) CHECK(box == "a");
  }
}

TEST_CASE("with keys, a box that does not answer loses its parts at the first report") {
  Cluster cluster(std::chrono::minutes(10), {}, true);
  REQUIRE(cluster.ask(0, question(kBytes)).ok());
  REQUIRE(cluster.await_equal_maps());
  cluster.box(1).acceptor.close();
  const auto gone = cluster.ask(0, question(0, "b"));
  REQUIRE(gone.ok());
  for (const std::string& box : boxes_of(*gone)) CHECK(box == "a");
}

TEST_CASE(
    "the leader moves all parts off a box that drains or becomes a standby, and it gets none "
    "until that ends") {
  const Duty duty = GENERATE(Duty::kDrains, Duty::kStandby);
  Cluster cluster;
  REQUIRE(cluster.ask(0, question(kBytes)).ok());
  CHECK(cluster.box(0).maps.duty_of("b") == Duty::kTakesParts);
  cluster.set_duty("b", duty);
  REQUIRE(cluster.desk.run_until(
      [&] { return !cluster.owners_seen_by(0).empty() && cluster.parts_on("b") == 0; }));
  auto second = question(kBytes);
  second.set_job("vgg");
  const auto map = cluster.ask(1, second);
  REQUIRE(map.ok());
  for (const std::string& box : boxes_of(*map)) CHECK(box == "a");
  CHECK(cluster.box(0).maps.duty_of("b") == duty);
  cluster.set_duty("b", Duty::kTakesParts);
  second.set_job("bert");
  const auto later = cluster.ask(0, second);
  REQUIRE(later.ok());
  const auto boxes = boxes_of(*later);
  CHECK(std::count(boxes.begin(), boxes.end(), "b") > 0);
}

TEST_CASE("a store that is late or full is a reason to ask again, not to give up") {
  const ErrorCode code =
      GENERATE(ErrorCode::kTimeout, ErrorCode::kUnavailable, ErrorCode::kResourceExhausted);
  Cluster cluster;
  FailingStore failing(*cluster.store);
  PartMaps maps(
      cluster.desk.context, failing,
      {.self = "a",
       .chunk_bytes = [] { return uint32_t{32'768}; },
       .box_directory = [&]() -> const BoxDirectory& { return cluster.box(0).box_directory; },
       .has_job = [](const std::string&) { return false; },
       .on_change = [] {},
       .on_answers = [] {},
       .log = [](BoxDirectory::Severity, const char*, const std::string&) {}});
  REQUIRE(cluster.desk.run_until([&] {
    const auto owner = maps.other_owner(kJob, 0, 1);  // says whether the maps have been read
    return owner.error().message.find("has not seen the part map") != std::string::npos;
  }));
  failing.commit_error = {code, "no answer in time"};
  std::optional<Result<proto::PartMap>> answer;
  maps.ask(question(kBytes), [&](const auto& map) { answer.emplace(map); });
  REQUIRE(cluster.desk.run_until([&] { return answer.has_value(); }));
  REQUIRE_FALSE(answer->ok());
  CHECK(answer->error().code == ErrorCode::kUnavailable);
  CHECK_THAT(answer->error().message,
             Contains("no answer in time") && Contains("will be repeated"));
}

TEST_CASE("a part that cannot move stays on a box that drains, and is reclaimed") {
  Cluster cluster;
  auto fixed = question(kBytes);
  fixed.set_may_move(false);
  REQUIRE(cluster.ask(0, fixed).ok());
  REQUIRE(cluster.await_equal_maps());
  const auto before = cluster.owners_seen_by(0);
  const auto part =
      static_cast<uint32_t>(std::find(before.begin(), before.end(), "a") - before.begin());
  cluster.box(1).maps.reclaim_part(kJob, part);
  REQUIRE(cluster.desk.run_until([&] { return cluster.owners_seen_by(0)[part] == "b"; }));
  CHECK(cluster.parts_on("b") == before.size() / 2 + 1);
}

TEST_CASE("parts are moved only if the map has not been changed in the meantime") {
  Cluster cluster;
  REQUIRE(cluster.ask(0, question(kBytes)).ok());
  REQUIRE(cluster.await_equal_maps());
  const auto move_all_to_a = [&] {
    PartMap map = cluster.box(0).maps.maps().at(kJob);
    std::fill(map.boxes.begin(), map.boxes.end(), "a");
    std::optional<Status> done;
    cluster.box(0).maps.move(kJob, map, "a test",
                             [&](const Status& moved) { done.emplace(moved); });
    REQUIRE(cluster.desk.run_until([&] { return done.has_value(); }));
    return *done;
  };
  cluster.box(1).maps.reclaim_part(kJob, 0);  // the other box has not seen this change yet
  const Status late = move_all_to_a();
  REQUIRE_FALSE(late.ok());
  CHECK(late.error().code == ErrorCode::kUnavailable);
  REQUIRE(cluster.desk.run_until([&] { return cluster.owners_seen_by(0)[0] == "b"; }));
  CHECK(move_all_to_a().ok());
  REQUIRE(cluster.desk.run_until([&] { return cluster.parts_on("b") == 0; }));
}

TEST_CASE("a part whose new owner is not registered goes there once the owner registers") {
  Cluster cluster;
  REQUIRE(cluster.ask(0, question(kBytes)).ok());
  REQUIRE(cluster.await_equal_maps());
  PartMap map = cluster.box(0).maps.maps().at(kJob);
  map.boxes[0] = "c";
  cluster.box(0).maps.move(kJob, map, "a test", [](const Status& moved) { CHECK(moved.ok()); });
  REQUIRE(cluster.desk.run_until([&] { return cluster.owners_seen_by(1)[0] == "c"; }));
  const auto parts = static_cast<uint32_t>(map.boxes.size());
  CHECK_FALSE(cluster.box(1).maps.other_owner(kJob, 0, parts).ok());
  const int changes = cluster.box(1).changes;
  cluster.add("c");
  REQUIRE(cluster.desk.run_until([&] { return cluster.box(1).changes > changes; }));
  const auto place = cluster.box(1).maps.other_owner(kJob, 0, parts);
  REQUIRE((place.ok() && place->has_value()));
  CHECK((*place)->box() == "c");
}

TEST_CASE("the map of an ended job is deleted after a while, unless the job begins again") {
  Cluster cluster(milliseconds(600));
  REQUIRE(cluster.ask(0, question(kBytes)).ok());
  REQUIRE(cluster.await_equal_maps());
  const auto boxes = cluster.owners_seen_by(0);
  const auto is_over_at = [&](size_t index) {
    const auto& maps = cluster.box(index).maps.maps();
    return maps.contains(kJob) && maps.at(kJob).is_over;
  };
  const auto is_over = [&] { return is_over_at(0) && is_over_at(1); };
  cluster.box(0).has_job = cluster.box(1).has_job = true;
  cluster.box(1).maps.on_job_over(kJob);
  cluster.box(0).has_job = cluster.box(1).has_job = false;
  REQUIRE(cluster.desk.run_until(is_over));

  CHECK(cluster.box(0).maps.parts_of("a") == 0);
  SECTION("permanently") {
    CHECK(cluster.desk.run_until(
        [&] { return cluster.owners_seen_by(0).empty() && cluster.owners_seen_by(1).empty(); }));
  }
  SECTION("a box that still runs it clears the mark") {
    cluster.box(0).has_job = true;
    CHECK(cluster.desk.run_until([&] { return !is_over(); }));
    CHECK(cluster.owners_seen_by(0) == boxes);
  }
  SECTION("the next job of that name and size gets the same map") {
    const auto again = cluster.ask(1, question(kBytes));
    REQUIRE(again.ok());
    CHECK(boxes_of(*again) == boxes);
    CHECK(cluster.desk.run_until([&] { return !is_over(); }));
  }
  SECTION("a job of another size gets a new map") {
    const auto again = cluster.ask(1, question(100));
    REQUIRE(again.ok());
    CHECK(again->parts_size() == 1);
  }
}

TEST_CASE("a box whose registration has lapsed is asked where it last was") {
  Cluster cluster;
  const BoxRecord lapsed = cluster.box(1).record("c");
  const auto is_listed = [&] { return cluster.box(0).box_directory.boxes().size() == 3; };
  Transaction add, remove;
  add.puts.push_back({.key = "boxes/c", .value = to_text(lapsed)});
  remove.deletes.push_back("boxes/c");
  REQUIRE(cluster.desk.commit(*cluster.store, add));
  REQUIRE(cluster.desk.run_until(is_listed));
  REQUIRE(cluster.desk.commit(*cluster.store, remove));
  REQUIRE(cluster.desk.run_until([&] { return !is_listed(); }));
  const auto asked = [&](const std::string& box) {
    proto::WorkerMessage question;
    question.mutable_ask_state()->set_job(kJob);
    std::optional<Result<proto::BoxMessage>> answer;
    cluster.box(0).maps.ask_box(box, question, [&](const auto& said) { answer.emplace(said); });
    REQUIRE(cluster.desk.run_until([&] { return answer.has_value(); }));
    return *answer;
  };
  CHECK(asked("c").ok());
  const auto unknown = asked("d");
  REQUIRE_FALSE(unknown.ok());
  CHECK_THAT(unknown.error().message, Contains("d was never registered"));
}

}  // namespace pbox::cluster
