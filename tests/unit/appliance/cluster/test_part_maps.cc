// Part maps of jobs, as the boxes of one cluster make and change them: each box has its own
// PartMaps on one store. They share the store's session, so each of them believes that it leads.
#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <catch2/catch.hpp>
#include <ctime>
#include <optional>

#include "appliance/cluster/local_store.h"
#include "appliance/cluster/part_maps.h"
#include "appliance/storage/disk.h"
#include "base/limits.h"
#include "nic/wire/control_frame.h"
#include "tests/unit/appliance/cluster/contract.h"

namespace pbox::cluster {
namespace {

using boost::asio::ip::tcp;
using Catch::Contains;
using std::chrono::milliseconds;

constexpr uint64_t kBytes = 100u << 20;
constexpr char kJob[] = "resnet";

proto::AskPartMap question(uint64_t bytes, const std::string& lost_box = {}) {
  proto::AskPartMap question;
  question.set_job(kJob);
  question.set_bytes(bytes);
  question.set_may_move(true);
  question.set_lost_box(lost_box);
  return question;
}

// A box that is registered and listens on its control port. It may own a part of the job.
struct Box {
  Box(Desk& desk, Store& store, const std::string& name)
      : acceptor(desk.context, {boost::asio::ip::make_address("127.0.0.1"), 0}),
        box_directory(desk.context, store, record(name),
                      [](BoxDirectory::Severity, const char*, const std::string&) {}),
        maps(desk.context, store,
             {.self = name,
              .chunk_bytes = [] { return uint32_t{32'768}; },
              .box_directory = [this]() -> const BoxDirectory& { return box_directory; },
              .has_job = [this](const std::string&) { return has_job; },
              .on_change = [this] { ++changes; },
              .on_answers = [] {},
              .log = [](BoxDirectory::Severity, const char*, const std::string&) {},
              .delete_after = milliseconds(600)}) {
    answer();
  }

  BoxRecord record(const std::string& name) const {
    BoxRecord record;
    record.name = name;
    record.control = "127.0.0.1:" + std::to_string(acceptor.local_endpoint().port());
    record.data = {"127.0.0.1:9600", "127.0.0.1:9601"};
    return record;
  }

  // Answers every question.
  void answer() {
    acceptor.async_accept([this](const boost::system::error_code& error, tcp::socket socket) {
      if (error) return;
      boost::system::error_code ignored;
      proto::BoxMessage message;
      message.mutable_data_addresses()->set_up_for_ms(up_for_ms);
      boost::asio::write(socket, boost::asio::buffer(*wire::frame(message)), ignored);
      sockets.push_back(std::move(socket));
      answer();
    });
  }

  tcp::acceptor acceptor;
  std::vector<tcp::socket> sockets;
  BoxDirectory box_directory;
  bool has_job = false;
  uint64_t up_for_ms = 0;
  int changes = 0;
  PartMaps maps;
};

// A cluster of two boxes.
struct Cluster {
  Cluster()
      : disk(std::move(*storage::open_state_folder(""))),
        store(std::move(*LocalStore::open(desk.context, *disk))) {
    store->start({.on_session = [this](int64_t) {
      for (auto& box : boxes) box->box_directory.on_session();
    }});
    REQUIRE(desk.await_session(*store));
    add("a");
    REQUIRE(desk.run_until([&] { return boxes[0]->box_directory.leads(); }));
    add("b");
    REQUIRE(desk.run_until([&] {
      return std::all_of(boxes.begin(), boxes.end(),
                         [](const auto& box) { return box->box_directory.boxes().size() == 2; });
    }));
  }

  void add(const std::string& name) { boxes.push_back(std::make_unique<Box>(desk, *store, name)); }
  Box& box(size_t index) { return *boxes[index]; }

  Result<proto::PartMap> ask(size_t index, const proto::AskPartMap& what) {
    std::optional<Result<proto::PartMap>> answer;
    box(index).maps.ask(what, [&](const auto& map) { answer.emplace(map); });
    REQUIRE(desk.run_until([&] { return answer.has_value(); }));
    return *answer;
  }
  // Returns the owner of each part, as box `index` sees it.
  std::vector<std::string> owners_seen_by(size_t index) {
    const auto& maps = box(index).maps.maps();
    const auto found = maps.find(kJob);
    return found == maps.end() ? std::vector<std::string>() : found->second.boxes;
  }
  bool await_equal_maps() {
    return desk.run_until(
        [&] { return !owners_seen_by(0).empty() && owners_seen_by(0) == owners_seen_by(1); });
  }
  size_t parts_on(const std::string& name) {
    const auto parts = owners_seen_by(0);
    return static_cast<size_t>(std::count(parts.begin(), parts.end(), name));
  }

  Desk desk;
  std::unique_ptr<storage::Disk> disk;
  std::unique_ptr<LocalStore> store;
  std::vector<std::unique_ptr<Box>> boxes;
};

std::vector<std::string> boxes_of(const proto::PartMap& map) {
  std::vector<std::string> boxes;
  for (const proto::PartPlace& place : map.parts()) boxes.push_back(place.box());
  return boxes;
}

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
    "the leader moves all parts off a box that drains, and it gets none until the drain ends") {
  Cluster cluster;
  REQUIRE(cluster.ask(0, question(kBytes)).ok());
  const auto drain = [&](bool draining) {
    std::optional<Status> done;
    cluster.box(1).maps.set_draining("b", draining, [&](const Status& set) { done.emplace(set); });
    REQUIRE(cluster.desk.run_until([&] { return done.has_value(); }));
    REQUIRE(done->ok());
  };
  drain(true);
  REQUIRE(cluster.desk.run_until(
      [&] { return !cluster.owners_seen_by(0).empty() && cluster.parts_on("b") == 0; }));
  auto second = question(kBytes);
  second.set_job("vgg");
  const auto map = cluster.ask(1, second);
  REQUIRE(map.ok());
  for (const std::string& box : boxes_of(*map)) CHECK(box == "a");
  drain(false);
  REQUIRE(cluster.desk.run_until([&] { return !cluster.box(0).maps.is_draining("b"); }));
  second.set_job("bert");
  const auto later = cluster.ask(0, second);
  REQUIRE(later.ok());
  const auto boxes = boxes_of(*later);
  CHECK(std::count(boxes.begin(), boxes.end(), "b") > 0);
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

TEST_CASE("a worker that begins a job that cannot move does not get a map that says it can") {
  Cluster cluster;
  REQUIRE(cluster.ask(0, question(kBytes)).ok());
  REQUIRE(cluster.await_equal_maps());
  const auto may_move = [&] { return cluster.box(1).maps.maps().at(kJob).may_move; };
  auto fixed = question(kBytes);
  fixed.set_may_move(false);
  // Another change is committed first.
  const PartMap map = cluster.box(0).maps.maps().at(kJob);
  cluster.box(0).maps.move(kJob, map, "a test", [](const Status&) {});
  const auto first = cluster.ask(1, fixed);
  REQUIRE_FALSE(first.ok());
  CHECK(first.error().code == ErrorCode::kUnavailable);
  REQUIRE(cluster.desk.run_until([&] { return cluster.ask(1, fixed).ok(); }));
  CHECK(cluster.desk.run_until([&] { return !may_move(); }));
}

TEST_CASE("the map of an ended job is deleted after a while, unless the job begins again") {
  Cluster cluster;
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

}  // namespace pbox::cluster
