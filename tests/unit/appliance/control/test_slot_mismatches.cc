// Jobs of collectives: what they cannot have, and their end if the ranks disagree.
#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <stdexcept>

#include "tests/unit/appliance/control/registry_desk.h"

namespace pbox::control::slot_mismatches_test {
namespace {

using Catch::Contains;

constexpr uint32_t kSlots = 4;

proto::WorkerMessage join_collective(uint32_t rank) {
  auto message = join_message("train", rank, 3);
  proto::Join& join = *message.mutable_join();
  join.set_collective(true);
  join.set_chunk_bytes(4096);
  join.clear_tensors();
  for (uint32_t slot = 0; slot < kSlots; ++slot) {
    proto::Tensor& tensor = *join.add_tensors();
    tensor.set_name("slot " + std::to_string(slot));
    tensor.set_elements(4096);
    tensor.set_dtype(static_cast<uint32_t>(wire::Dtype::kU8));
  }
  return message;
}

std::vector<ConnectionId> start(Desk& desk) {
  std::vector<ConnectionId> ids;
  for (const uint32_t rank : {0u, 1u, 2u}) ids.push_back(desk.join(join_collective(rank)));
  for (const ConnectionId id : ids) REQUIRE(desk.take(id).size() == 1);
  return ids;
}

// Reports, as the pipeline that has slot 2, that ranks 1 and 2 disagree about the slot's round 7.
void disagree(Desk& desk) {
  for (const uint32_t pipeline : {0u, 1u}) {
    for (pipeline::JobShard* shard : desk.host().shards(pipeline)) {
      if (shard->find(2) == nullptr) continue;
      shard->reject_shape({.chunk = 2, .round = 7, .first_rank = 1, .other_rank = 2});
    }
  }
}

// Returns the FAILURE among the messages since the last look.
proto::Failure failure_of(Desk& desk, ConnectionId id) {
  for (const proto::BoxMessage& message : desk.take(id)) {
    if (message.has_failure()) return message.failure();
  }
  throw std::logic_error("no FAILURE was sent");
}

proto::WorkerMessage answer(const std::string& text) {
  proto::WorkerMessage message;
  message.mutable_slot_operation()->set_chunk(2);
  message.mutable_slot_operation()->set_round(7);
  message.mutable_slot_operation()->set_text(text);
  return message;
}

}  // namespace

TEST_CASE("two ranks that disagree are asked for their operations, and all ranks get both") {
  Desk desk;
  const auto ids = start(desk);
  disagree(desk);
  desk.pass(kSecond / 2, ids);
  for (const uint32_t rank : {1u, 2u}) {
    const auto sent = desk.take(ids[rank]);
    const auto question = std::find_if(sent.begin(), sent.end(), [](const auto& message) {
      return message.has_ask_slot_operation();
    });
    REQUIRE(question != sent.end());
    CHECK(question->ask_slot_operation().chunk() == 2);
    CHECK(question->ask_slot_operation().round() == 7);
  }
  for (const auto& message : desk.take(ids[0])) CHECK(message.has_heartbeat());
  desk.say(ids[0], answer("not asked"));
  desk.say(ids[2], answer("operation 9 (barrier)"));
  CHECK(desk.registry().has_job("train"));
  desk.say(ids[1], answer("operation 8 (all_reduce\nof 1 f32, sum)"));
  for (const ConnectionId id : ids) {
    const proto::Failure failure = failure_of(desk, id);
    CHECK(failure.code() == static_cast<uint32_t>(ErrorCode::kMismatch));
    CHECK(failure.message() ==
          "job 'train': the ranks disagree about an operation: rank 1 is at operation 8 "
          "(all_reduce?of 1 f32, sum), rank 2 is at operation 9 (barrier); make the same calls in "
          "the same order on every rank");
  }
  CHECK_FALSE(desk.registry().has_job("train"));
}

TEST_CASE("a rank that does not say what it does holds the job's end up for two seconds") {
  Desk desk;
  const auto ids = start(desk);
  disagree(desk);
  desk.pass(kSecond, ids);
  desk.say(ids[1], answer("operation 8 (barrier)"));
  CHECK(desk.registry().has_job("train"));
  desk.take(ids[0]);
  desk.pass(2 * kSecond, ids);
  CHECK_THAT(failure_of(desk, ids[0]).message(),
             Contains("rank 1 is at operation 8 (barrier), rank 2 has not reported its "
                      "operation"));
}

TEST_CASE("a rank that has left is not waited for") {
  Desk desk;
  const auto ids = start(desk);
  proto::WorkerMessage leave;
  leave.mutable_leave();
  desk.say(ids[1], leave);
  disagree(desk);
  desk.pass(kSecond / 2, {ids[0], ids[2]});
  desk.take(ids[2]);
  desk.say(ids[2], answer("operation 9 (barrier)"));
  CHECK_THAT(failure_of(desk, ids[2]).message(),
             Contains("rank 1 has not reported its operation, rank 2 is at operation 9"));
}

TEST_CASE("options that a job of collectives cannot have are refused with their remedy") {
  struct Case {
    std::function<void(proto::Join&)> change;
    const char* says;
  };
  const std::vector<Case> cases = {
      {[](auto& join) {
         join.set_mode(1);
         join.mutable_optimizer()->set_kind(1);
       },
       "mode optimize: the box sees no weights"},
      {[](auto& join) { join.set_reduction(1); }, "reduction mean"},
      {[](auto& join) { join.mutable_sync()->set_model(1); }, "a sync model other than bsp"},
      {[](auto& join) { join.set_numerics(1); }, "numerics ordered"},
      {[](auto& join) { join.set_delivery(1); }, "delivery pull"},
      {[](auto& join) { join.set_priority_policy(1); }, "priority_policy forward-order"},
      {[](auto& join) { join.set_on_worker_lost(1); }, "on_worker_lost partial"},
      {[](auto& join) { join.set_rejoins(true); }, "rejoin"},
      {[](auto& join) { join.set_is_backup(true); }, "backup = 1"},
      {[](auto& join) { join.mutable_tensors(1)->set_dtype(0); }, "tensor 1 has dtype 0"},
      {[](auto& join) { join.set_replicas(1); }, "replicas 1 needs mode optimize"},
      {[](auto& join) { join.set_restore("latest"); }, "restore needs mode optimize"},
  };
  for (const Case& one : cases) {
    INFO(one.says);
    Desk desk;
    auto message = join_collective(0);
    one.change(*message.mutable_join());
    CHECK_THAT(failure_of(desk, desk.join(message)).message(), Contains(one.says));
  }
}

TEST_CASE("types that only collectives have are no types of tensors") {
  Desk desk;
  auto message = join_message("train", 0, 1);
  message.mutable_join()->mutable_tensors(0)->set_dtype(static_cast<uint32_t>(wire::Dtype::kI32));
  CHECK_THAT(failure_of(desk, desk.join(message)).message(), Contains("dtype 3 is unknown"));
}

}  // namespace pbox::control::slot_mismatches_test
