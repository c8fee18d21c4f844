// Bounds on what a box takes: shards, sessions, job slots and memory; and what is free.
#include <catch2/catch.hpp>

#include "appliance/control/capacity.h"
#include "tests/unit/appliance/control/registry_desk.h"

namespace pbox::control::capacity_test {
namespace {

using Catch::Contains;

constexpr auto kExhausted = static_cast<uint32_t>(ErrorCode::kResourceExhausted);

// A part of 64 elements, of a job with so many parts that each has one pipeline.
proto::WorkerMessage join_small_part(const std::string& job, uint32_t part, uint32_t world_size) {
  auto message = join_message(job, 0, world_size);
  proto::Join& join = *message.mutable_join();
  join.set_parts(limits::kPartsPerJobMax);
  join.set_part(part);
  join.clear_tensors();
  auto& tensor = *join.add_tensors();
  tensor.set_name("small");
  tensor.set_elements(64);
  tensor.set_lr_scale(1);
  return message;
}

// Starts parts until the only pipeline serves as many as it may. Returns their connections.
std::vector<ConnectionId> fill_with_parts(Desk& desk) {
  std::vector<ConnectionId> ids;
  for (uint32_t index = 0; index < limits::kShardsPerPipelineMax; ++index) {
    const std::string job = "job" + std::to_string(index / limits::kPartsPerJobMax);
    ids.push_back(desk.join(join_small_part(job, index % limits::kPartsPerJobMax, 1)));
    const auto messages = desk.take(ids.back());
    REQUIRE(messages.size() == 1);
    REQUIRE(messages[0].has_session());
  }
  return ids;
}

proto::WorkerMessage join_copy(const std::string& name) {
  auto message = join_message(name, 0, 1);
  proto::Join& join = *message.mutable_join();
  join.set_is_backup(true);
  join.set_recovery(static_cast<uint32_t>(Recovery::kNone));
  join.set_delivery(static_cast<uint32_t>(wire::Delivery::kPull));
  return message;
}

}  // namespace

TEST_CASE("a pipeline that serves as many parts as it may refuses the next one in words") {
  Desk desk({}, 1);
  const auto ids = fill_with_parts(desk);
  CHECK(desk.host().shards(0).size() == limits::kShardsPerPipelineMax);
  const auto failure = desk.take_failure(desk.join(join_small_part("more", 0, 1)));
  CHECK(failure.code() == kExhausted);
  CHECK_THAT(failure.message(), Contains("part 0 of job 'more'") && Contains("pipeline 0") &&
                                    Contains(std::to_string(limits::kShardsPerPipelineMax)));
  desk.say(ids[7], leave_message());
  const auto messages = desk.take(desk.join(join_small_part("more", 0, 1)));
  REQUIRE(messages.size() == 1);
  CHECK(messages[0].has_session());
}

TEST_CASE("parts that still gather count, so that no part is refused once all its ranks are here") {
  Desk desk({}, 1);
  const ConnectionId early = desk.join(join_small_part("early", 0, 2));
  for (uint32_t index = 1; index < limits::kShardsPerPipelineMax; ++index) {
    const std::string job = "job" + std::to_string(index / limits::kPartsPerJobMax);
    desk.join(join_small_part(job, index % limits::kPartsPerJobMax, 1));
  }
  CHECK(desk.take_failure(desk.join(join_small_part("more", 0, 1))).code() == kExhausted);
  auto second = join_small_part("early", 0, 2);
  second.mutable_join()->set_rank(1);
  const auto messages = desk.take(desk.join(second));
  REQUIRE(messages.size() == 1);
  CHECK(messages[0].has_session());
  CHECK(desk.take(early).size() == 1);
}

TEST_CASE("backup copies take no job slot, and are admitted when all slots are taken") {
  Desk desk({.jobs_max = 1});
  desk.join(join_copy("first~1"));
  CHECK(desk.registry().free_capacity().job_slots == 1);
  desk.start("train", 1);
  CHECK(desk.registry().free_capacity().job_slots == 0);
  const auto messages = desk.take(desk.join(join_copy("other~2")));
  REQUIRE(messages.size() == 1);
  CHECK(messages[0].has_session());
  CHECK_THAT(desk.take_failure(desk.join(join_message("late", 0, 1))).message(),
             Contains("serves 1 jobs already"));
}

TEST_CASE("free capacity is what jobs, gathering ones too, leave of the box") {
  Desk desk({.jobs_max = 3, .job_memory_bytes = 1'500'000, .arena_bytes = {1'000'000, 700'000}});
  const FreeCapacity empty = desk.registry().free_capacity();
  CHECK(empty == FreeCapacity{.job_slots = 3,
                              .shards = 2 * limits::kShardsPerPipelineMax,
                              .memory_bytes = 1'500'000,
                              .part_memory_bytes = 1'000'000});
  const ConnectionId gathering = desk.join(join_message("one", 0, 2));  // on both pipelines
  desk.join(join_small_part("two", 0, 1));
  const FreeCapacity free = desk.registry().free_capacity();
  const uint64_t taken = desk.registry().memory_taken_bytes();
  CHECK(free.job_slots == 1);
  CHECK(free.shards == empty.shards - 3);
  CHECK(free.memory_bytes == 1'500'000 - taken);
  CHECK(free.part_memory_bytes < 1'000'000);
  CHECK(free.part_memory_bytes > 1'000'000 - taken);
  desk.hang_up(gathering);
  CHECK(desk.registry().free_capacity().job_slots == 2);
}

TEST_CASE("capacity without bounds on memory is free without bound") {
  Desk desk;
  desk.start("train", 1);
  CHECK(desk.registry().free_capacity().memory_bytes > UINT64_MAX / 2);
  CHECK(desk.registry().free_capacity().part_memory_bytes > UINT64_MAX / 2);
}

}  // namespace pbox::control::capacity_test
