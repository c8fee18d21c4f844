#include <catch2/catch.hpp>
#include <optional>
#include <set>

#include "appliance/cluster/epoch_pool.h"
#include "appliance/cluster/local_store.h"
#include "appliance/storage/replace_file.h"
#include "tests/support/crashing_disk.h"
#include "tests/unit/appliance/cluster/contract.h"

namespace pbox::cluster::epoch_pool_test {
namespace {

using Catch::Contains;

// One box: its disk, its local epochs, and its pool in a store that it shares with other boxes.
class Box {
 public:
  Box(Desk& desk, Store& store, const std::string& name) : desk_(desk), store_(store), name_(name) {
    start();
  }
  void start() {
    pool_.reset();
    given_.emplace(*storage::EpochStore::open(disk));
    pool_.emplace(desk_.context, store_, disk, *given_, "rack/" + name_);
  }
  EpochPool& pool() { return *pool_; }
  // Waits for a block if there is none.
  uint32_t must_next(uint32_t floor = 0) {
    std::optional<Result<uint32_t>> epoch;
    REQUIRE(desk_.run_until([&] {
      epoch.emplace(pool_->next(floor));
      return epoch->ok();
    }));
    return **epoch;
  }

  test::CrashingDisk disk;

 private:
  Desk& desk_;
  Store& store_;
  std::string name_;
  std::optional<storage::EpochStore> given_;
  std::optional<EpochPool> pool_;
};

class SharedStore {
 public:
  SharedStore() : store_(std::move(*LocalStore::open(desk.context, disk))) { store_->start({}); }
  Store& store() { return *store_; }

  Desk desk;
  test::CrashingDisk disk;

 private:
  std::unique_ptr<LocalStore> store_;
};

}  // namespace

TEST_CASE("boxes that take turns never use the same epoch, over restarts and crashes") {
  SharedStore shared;
  Box one(shared.desk, shared.store(), "one");
  Box two(shared.desk, shared.store(), "two");
  std::set<uint32_t> all;
  uint32_t newest[2] = {0, 0};
  for (int turn = 0; turn < 600; ++turn) {
    Box& box = turn % 3 == 0 ? one : two;
    uint32_t& before = newest[turn % 3 == 0 ? 0 : 1];
    const uint32_t epoch = box.must_next();
    CHECK(all.insert(epoch).second);
    CHECK(epoch > before);
    before = epoch;
    if (turn % 7 == 0) box.start();
    if (turn % 50 == 0) {
      box.disk.crash();
      box.start();
    }
  }
  CHECK(all.size() == 600);
}

TEST_CASE(
    "while the store is down a box uses its block, and reports an error when that is used up") {
  SharedStore shared;
  Box box(shared.desk, shared.store(), "one");
  REQUIRE(shared.desk.run_until([&] { return box.pool().spare() == EpochPool::kBlock; }));
  shared.disk.steps_left = 0;  // from now on no commit succeeds
  for (uint32_t epoch = 1; epoch <= EpochPool::kBlock; ++epoch) {
    if (epoch == 20) box.start();  // the block survives a restart of the box
    REQUIRE(box.pool().next(0).ok());
  }
  CHECK_FALSE(box.pool().next(0).ok());
  Error error;
  REQUIRE(shared.desk.run_until([&] {
    error = box.pool().next(0).error();
    return error.message.find("no space left") != std::string::npos;
  }));
  CHECK(error.code == ErrorCode::kUnavailable);
  CHECK_THAT(error.message, Contains("above 64"));
  shared.disk.steps_left = -1;
  CHECK(box.must_next() == EpochPool::kBlock + 1);
}

TEST_CASE("jobs that state high epochs again and again do not use up the epochs of a cluster") {
  SharedStore shared;
  Box box(shared.desk, shared.store(), "one");
  constexpr uint32_t kFar = EpochPool::kSkippedMax / 2 - EpochPool::kBlock;
  uint32_t newest = box.must_next();
  for (int count = 0; count < 2; ++count) newest = box.must_next(newest + kFar);
  std::optional<Error> refused;
  REQUIRE(shared.desk.run_until([&] {
    const auto epoch = box.pool().next(newest + kFar);
    REQUIRE_FALSE(epoch.ok());
    if (epoch.error().code == ErrorCode::kInvalidArgument) refused = epoch.error();
    return refused.has_value();
  }));
  CHECK_THAT(refused->message,
             Contains("epoch " + std::to_string(newest + kFar)) && Contains("start all ranks"));
  CHECK(box.must_next() == newest + 1);
  // Epochs that other boxes have reserved are known to the store, however far they are ahead.
  Box other(shared.desk, shared.store(), "two");
  const uint32_t far = other.must_next(newest + kFar);
  CHECK(box.must_next(far) > far);
}

TEST_CASE("epochs exceed a floor above the reserved block, and the box's own earlier epochs") {
  SharedStore shared;
  Box box(shared.desk, shared.store(), "one");
  CHECK(box.must_next(1'000) > 1'000);
  Box other(shared.desk, shared.store(), "two");
  CHECK(other.must_next() > 1'000);

  test::CrashingDisk disk;
  {
    auto alone = *storage::EpochStore::open(disk);
    REQUIRE(alone.next(5'000).ok());  // used with the local store, before the box joined a cluster
  }
  Box late(shared.desk, shared.store(), "three");
  late.disk = disk;
  late.start();
  CHECK(late.must_next() > 5'001);
}

TEST_CASE("a state folder that was copied to another box does not bring its block along") {
  SharedStore shared;
  Box box(shared.desk, shared.store(), "one");
  const uint32_t first = box.must_next();
  Box copy(shared.desk, shared.store(), "two");
  copy.disk = box.disk;
  copy.start();
  const uint32_t second = copy.must_next();
  CHECK(second > first + EpochPool::kSpareMin);
  CHECK(box.must_next() == first + 1);
}

TEST_CASE("a damaged block file only loses the epochs reserved in it") {
  SharedStore shared;
  Box box(shared.desk, shared.store(), "one");
  const uint32_t first = box.must_next();
  std::string text = **box.disk.read("epoch-blocks");
  text.back() = text.back() == '9' ? '8' : '9';
  REQUIRE(storage::replace_file(box.disk, "epoch-blocks", text).ok());
  box.start();
  CHECK(box.must_next() == first + EpochPool::kBlock);
}

TEST_CASE("the error names a key of the store that does not hold an epoch") {
  SharedStore shared;
  REQUIRE(shared.desk.commit(shared.store(), {{}, {{"epochs/reserved", "many", false}}, {}}).ok());
  Box box(shared.desk, shared.store(), "one");
  REQUIRE(shared.desk.run_until(
      [&] { return box.pool().next(0).error().message.find("'many'") != std::string::npos; }));
  REQUIRE(shared.desk.commit(shared.store(), {{}, {{"epochs/reserved", "70", false}}, {}}).ok());
  CHECK(box.must_next() == 71);
}

}  // namespace pbox::cluster::epoch_pool_test
