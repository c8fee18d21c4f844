#include <catch2/catch.hpp>

#include "appliance/cluster/claim.h"
#include "appliance/cluster/local_store.h"
#include "appliance/storage/replace_file.h"
#include "tests/support/crashing_disk.h"
#include "tests/unit/appliance/cluster/contract.h"

namespace pbox::cluster::local_store_test {
namespace {

using Catch::Contains;

std::unique_ptr<LocalStore> must_open(Desk& desk, storage::Disk& disk, Observer observer = {}) {
  auto store = LocalStore::open(desk.context, disk);
  REQUIRE(store.ok());
  (*store)->start(std::move(observer));
  return std::move(*store);
}

Transaction put(const std::string& value) {
  return {.conditions = {}, .puts = {{"key", value, false}}, .deletes = {}};
}

}  // namespace

TEST_CASE("the local store keeps the promises of every store") {
  const auto disk = storage::open_state_folder("");
  REQUIRE(disk.ok());
  Desk desk;
  const StoreFactory open = [&](Desk& at, Observer observer) {
    return must_open(at, **disk, std::move(observer));
  };
  SECTION("transactions") {
    check_transactions(desk, open);
  }
  SECTION("watches") {
    check_watches(desk, open);
  }
  SECTION("sessions") {
    check_sessions(desk, open);
  }
  SECTION("claims") {
    check_claims(desk, open);
  }
}

TEST_CASE("a crash at any step leaves the local store before or after the commit, never between") {
  for (int steps = 0; steps <= 4; ++steps) {
    CAPTURE(steps);
    test::CrashingDisk disk;
    Desk desk;
    int64_t old_revision = 0;
    bool answered = false;
    {
      const auto store = must_open(desk, disk);
      old_revision = desk.commit(*store, put("old"))->revision;
      disk.steps_left = steps;
      const auto risky = desk.commit(*store, put("new"));
      answered = risky.ok();
      CHECK(answered == (steps >= 4));
      CHECK(store->health().up == answered);
      if (!answered) {
        CHECK_THAT(store->health().error, Contains("no space left"));
        CHECK(desk.get(*store, "key")->entries[0].value == "old");
      }
    }
    disk.crash();
    const auto store = must_open(desk, disk);
    const auto snapshot = desk.get(*store, "key");
    REQUIRE(snapshot->entries.size() == 1);
    CHECK(snapshot->entries[0].value == (answered ? "new" : "old"));
    const auto next = desk.commit(*store, put("next"));
    REQUIRE(next.ok());
    CHECK(next->revision > old_revision);
    CHECK(store->health().up);
  }
}

TEST_CASE("a local store whose disk fails reports it, and continues once the disk works again") {
  test::CrashingDisk disk;
  Desk desk;
  std::vector<bool> up;
  const auto store =
      must_open(desk, disk, {.on_health = [&](const Health& health) { up.push_back(health.up); }});
  disk.steps_left = 0;
  CHECK_FALSE(desk.commit(*store, put("1")).ok());
  disk.steps_left = -1;
  CHECK(desk.commit(*store, put("2")).ok());
  CHECK(up == std::vector<bool>{true, false, true});
  CHECK(store->health().errors[static_cast<size_t>(Operation::kCommit)] == 1);
}

TEST_CASE("tokens of a local store ascend over restarts") {
  const auto disk = storage::open_state_folder("");
  Desk desk;
  int64_t newest = 0;
  for (int start = 0; start < 3; ++start) {
    const auto store = must_open(desk, **disk);
    Claim claim(
        desk.context, *store, "lead", [] { return "me"; }, [] {});
    REQUIRE(desk.run_until([&] { return claim.held(); }));
    CHECK(claim.token() > newest);
    newest = claim.token();
  }
}

TEST_CASE("a damaged file of the local store is an error that says what to do") {
  const auto disk = storage::open_state_folder("");
  Desk desk;
  REQUIRE(desk.commit(*must_open(desk, **disk), put("1")).ok());
  const std::string whole = **(*disk)->read("cluster");
  for (const size_t at : {size_t{0}, size_t{14}, whole.size() - 1}) {
    std::string damaged = whole;
    damaged[at] ^= 1;
    REQUIRE(storage::replace_file(**disk, "cluster", damaged).ok());
    const auto store = LocalStore::open(desk.context, **disk);
    REQUIRE_FALSE(store.ok());
    CHECK_THAT(store.error().message, Contains("damaged") && Contains("delete the file"));
  }
  REQUIRE(storage::replace_file(**disk, "cluster", whole.substr(0, 5)).ok());
  CHECK_FALSE(LocalStore::open(desk.context, **disk).ok());
}

TEST_CASE("a watch of compacted changes is notified, and a mirror reads again") {
  const auto disk = storage::open_state_folder("");
  Desk desk;
  const auto store = must_open(desk, **disk);
  bool is_compacted = false;
  const auto watch = store->watch(
      "", 1,
      {.on_events = [](const auto&) { FAIL(); }, .on_compacted = [&] { is_compacted = true; }});
  CHECK(desk.run_until([&] { return is_compacted; }));

  Mirror mirror(desk.context, *store, "key", [] {});
  REQUIRE(desk.run_until([&] { return mirror.loaded(); }));
  // These are committed without running the loop, so the mirror sees only the last.
  const size_t count = LocalStore::kHistoryMax + 2;
  for (size_t i = 0; i < count; ++i) store->commit(put(std::to_string(i)), [](const auto&) {});
  CHECK(desk.run_until([&] {
    return mirror.find("key") != nullptr && mirror.find("key")->value == std::to_string(count - 1);
  }));
}

}  // namespace pbox::cluster::local_store_test
