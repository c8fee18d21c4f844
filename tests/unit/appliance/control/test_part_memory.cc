// The memory that is counted for a job covers all that the job takes.
#include <malloc.h>

#include <catch2/catch.hpp>

#include "appliance/control/part_memory.h"
#include "tests/unit/appliance/control/registry_desk.h"

namespace pbox::control::part_memory_test {
namespace {

using Catch::Contains;

// A JOIN with many tensors of one element each.
proto::WorkerMessage join_of_scalars(uint32_t tensors, uint32_t rank, uint32_t world_size) {
  auto message = join_message("scalars", rank, world_size);
  proto::Join& join = *message.mutable_join();
  join.clear_tensors();
  for (uint32_t index = 0; index < tensors; ++index) {
    auto& tensor = *join.add_tensors();
    tensor.set_name("a tensor of a long name, number " + std::to_string(index));
    tensor.set_elements(1);
    tensor.set_lr_scale(1);
  }
  return message;
}

// Bytes that the allocator has given out; 0 under a sanitizer, which has an allocator of its own.
uint64_t allocated_bytes() {
  const auto info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

uint64_t arena_bytes(Desk& desk) {
  uint64_t bytes = 0;
  for (uint32_t pipeline = 0; pipeline < desk.host().count(); ++pipeline) {
    for (const pipeline::JobShard* shard : desk.host().shards(pipeline)) {
      bytes += shard->arena().size();
    }
  }
  return bytes;
}

}  // namespace

TEST_CASE("a job takes no more memory than is counted for it, however small its tensors are") {
  constexpr uint32_t kTensors = 20'000;
  constexpr uint32_t kRanks = 4;
  Desk desk;
  std::vector<proto::WorkerMessage> joins;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    joins.push_back(join_of_scalars(kTensors, rank, kRanks));
  }
  const uint64_t before = allocated_bytes();
  std::vector<ConnectionId> ids;
  for (const auto& join : joins) ids.push_back(desk.join(join));
  for (const ConnectionId id : ids) REQUIRE(desk.take(id).at(0).has_session());
  const uint64_t arenas = arena_bytes(desk);
  const uint64_t after = allocated_bytes();
  const uint64_t counted = desk.registry().memory_taken_bytes();
  CHECK(counted > 2 * arenas);  // tables are most of such a job
  if (after > before) {
    CHECK(after - before + arenas <= counted);
    CHECK(counted <= 3 * (after - before + arenas));
  }
}

TEST_CASE("a job whose arenas fit, but not its tables and names, is refused") {
  Desk free;
  free.join(join_of_scalars(20'000, 0, 1));
  const uint64_t arenas = arena_bytes(free);
  Desk desk({.job_memory_bytes = arenas + arenas / 2});
  const auto failure = desk.take_failure(desk.join(join_of_scalars(20'000, 0, 1)));
  CHECK(failure.code() == static_cast<uint32_t>(ErrorCode::kResourceExhausted));
  CHECK_THAT(failure.message(), Contains("'scalars' needs ") && Contains("job_share"));
  CHECK(desk.registry().memory_taken_bytes() == 0);
}

TEST_CASE("memory that is counted by tensor is the memory that the chunks take") {
  auto message = join_optimizing(0);
  proto::Join& join = *message.mutable_join();
  join.set_parts(4);
  join.set_chunk_bytes(4096);
  for (const bool drops : {false, true}) {
    for (const auto dtype : {wire::Dtype::kBf16, wire::Dtype::kF32}) {
      for (const bool replicated : {false, true}) {
        if (drops) close_with_one(join);
        join.mutable_tensors(0)->set_dtype(static_cast<uint32_t>(dtype));
        join.set_replicas(replicated ? 1 : 0);
        const JobSpec spec = spec_of(message);
        const Job job(spec, 0, Placement{.loads_bytes = {5, 0, 7}});
        CHECK(job.footprint_on(1) == one_shard_bytes(spec));
        CHECK(job.footprint() == one_shard_bytes(spec) + control_bytes(spec));
      }
    }
  }
}

TEST_CASE("a part goes to the least loaded pipeline that has room for it") {
  auto message = join_message("train", 0, 1);
  message.mutable_join()->set_parts(8);
  const uint64_t bytes = one_shard_bytes(spec_of(message));
  Desk desk({.arena_bytes = {bytes - 1, 3 * bytes, 2 * bytes}}, 3);
  for (uint32_t part = 0; part < 5; ++part) {
    message.mutable_join()->set_part(part);
    REQUIRE(desk.take(desk.join(message)).at(0).has_session());
  }
  CHECK(desk.host().shards(0).empty());
  CHECK(desk.host().shards(1).size() == 3);
  CHECK(desk.host().shards(2).size() == 2);
  message.mutable_join()->set_part(5);
  CHECK_THAT(desk.take_failure(desk.join(message)).message(), Contains("on pipeline "));
}

TEST_CASE("a backup copy takes one pipeline where it fits on one, and all where it does not") {
  auto message = join_message("train#0~1", 0, 1);
  proto::Join& join = *message.mutable_join();
  join.set_is_backup(true);
  join.set_recovery(static_cast<uint32_t>(Recovery::kNone));
  join.set_delivery(static_cast<uint32_t>(wire::Delivery::kPull));
  const uint64_t bytes = one_shard_bytes(spec_of(message));
  Desk roomy({.arena_bytes = {bytes, bytes}});
  const auto session = roomy.take(roomy.join(message)).at(0).session();
  CHECK(session.pipelines_size() == 1);
  CHECK(roomy.host().shards(0).size() + roomy.host().shards(1).size() == 1);
  join.set_job("train#1~1");
  CHECK(roomy.take(roomy.join(message)).at(0).session().pipelines_size() == 1);
  CHECK(roomy.host().shards(0).size() == roomy.host().shards(1).size());

  Desk narrow({.arena_bytes = {bytes - 1, bytes - 1}});
  CHECK(narrow.take(narrow.join(message)).at(0).session().pipelines_size() == 2);
}

}  // namespace pbox::control::part_memory_test
