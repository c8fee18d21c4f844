#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "appliance/storage/epoch_store.h"
#include "tests/support/crashing_disk.h"

namespace pbox::storage::epoch_store_test {
namespace {

using Catch::Contains;

std::string fresh_folder() {
  std::string name = std::filesystem::temp_directory_path() / "pbox-state-XXXXXX";
  REQUIRE(mkdtemp(name.data()) != nullptr);
  return name;
}

}  // namespace

TEST_CASE("jobs that state high epochs again and again do not use up the epochs of a box") {
  const auto disk = std::move(*open_state_folder(""));
  auto epochs = *EpochStore::open(*disk);
  constexpr uint32_t kHalf = Epochs::kSkippedMax / 2;
  uint32_t newest = 0;
  for (int count = 0; count < 2; ++count) newest = *epochs.next(newest + kHalf);
  const auto refused = epochs.next(newest + kHalf);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::kInvalidArgument);
  CHECK_THAT(refused.error().message, Catch::Contains("epoch " + std::to_string(newest + kHalf)));
  CHECK(*epochs.next(newest) == newest + 1);
}

TEST_CASE("epochs ascend over restarts, and exceed a floor that workers state") {
  const std::string folder = fresh_folder() + "/state";  // created if missing
  for (const uint32_t expected : {1u, 2u, 3u}) {
    const auto disk = open_state_folder(folder);
    REQUIRE(disk.ok());
    auto epochs = EpochStore::open(**disk);
    REQUIRE(epochs.ok());
    CHECK(*epochs->next(0) == expected);
  }
  const auto disk = open_state_folder(folder);
  auto epochs = EpochStore::open(**disk);
  CHECK(*epochs->next(41) == 42);
  CHECK(*epochs->next(7) == 43);
  std::filesystem::remove_all(std::filesystem::path(folder).parent_path());
}

TEST_CASE("no epoch is used twice, whichever step of the disk fails and whenever the box crashes") {
  for (int steps = 0; steps <= 5; ++steps) {
    CAPTURE(steps);
    test::CrashingDisk disk;
    uint32_t newest = *EpochStore::open(disk)->next(0);
    disk.steps_left = steps;
    auto epochs = *EpochStore::open(disk);
    const auto risky = epochs.next(0);
    CHECK(risky.ok() == (steps >= 4));
    if (risky) newest = *risky;
    disk.steps_left = -1;
    const auto retried = epochs.next(0);
    REQUIRE(retried.ok());
    CHECK(*retried > newest);
    newest = *retried;
    disk.crash();
    CHECK(*EpochStore::open(disk)->next(0) > newest);
  }
}

TEST_CASE("a damaged epoch file is an error that says what to do") {
  const std::string folder = fresh_folder();
  {
    const auto disk = open_state_folder(folder);
    REQUIRE(EpochStore::open(**disk)->next(99).ok());
  }
  std::fstream(folder + "/epoch", std::ios::in | std::ios::out) << "pbox-epoch 7";
  const auto disk = open_state_folder(folder);
  const auto epochs = EpochStore::open(**disk);
  REQUIRE_FALSE(epochs.ok());
  CHECK_THAT(epochs.error().message, Contains("damaged") && Contains("delete the file"));
  std::filesystem::remove_all(folder);
}

TEST_CASE("a box without a folder keeps its epochs as long as it runs") {
  const auto disk = open_state_folder("");
  CHECK(*EpochStore::open(**disk)->next(0) == 1);
  CHECK(*EpochStore::open(**disk)->next(0) == 2);
  CHECK(*EpochStore::open(**open_state_folder(""))->next(0) == 1);
}

}  // namespace pbox::storage::epoch_store_test
