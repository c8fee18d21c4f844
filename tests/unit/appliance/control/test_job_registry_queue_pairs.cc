#include <catch2/catch.hpp>

#include "nic/wire/queue_pair.h"
#include "tests/unit/appliance/control/registry_desk.h"

namespace pbox::control {
namespace {

using Catch::Contains;

wire::QueuePairAddress address(uint32_t number) {
  wire::QueuePairAddress made;
  made.number = number;
  made.mtu_bytes = 1024;
  return made;
}

proto::WorkerMessage asks(const std::vector<uint32_t>& pipelines, uint64_t sequence) {
  proto::WorkerMessage message;
  proto::QueuePairs& asked = *message.mutable_queue_pairs();
  asked.set_sequence(sequence);
  for (const uint32_t pipeline : pipelines) {
    proto::QueuePair& pair = *asked.add_pairs();
    pair.set_pipeline(pipeline);
    wire::write_queue_pair(address(100 + pipeline), pair);
  }
  return message;
}

proto::QueuePairs answer_to(Desk& desk, ConnectionId id, const proto::WorkerMessage& question) {
  desk.take(id);
  desk.say(id, question);
  const auto said = desk.take(id);
  REQUIRE(said.size() == 1);
  REQUIRE(said[0].has_queue_pairs());
  CHECK(said[0].queue_pairs().sequence() == question.queue_pairs().sequence());
  return said[0].queue_pairs();
}

}  // namespace

TEST_CASE("a worker's queue pairs are answered by the box's of the same pipelines") {
  Desk desk;
  const auto ids = desk.start("job", 2);
  desk.host().has_queue_pairs = true;
  const auto answer = answer_to(desk, ids[1], asks({1, 0}, 7));
  CHECK(answer.refusal() == "");
  REQUIRE(answer.pairs_size() == 2);
  CHECK(answer.pairs(0).pipeline() == 1);
  CHECK(answer.pairs(1).pipeline() == 0);
  // This host answers with the worker's number plus a thousand.
  CHECK(wire::parse_queue_pair(answer.pairs(0))->number == 1101);
  CHECK(desk.host().connected == std::map<ConnectionId, uint32_t>{{ids[1], 2}});
  SECTION("and are gone with its connection") {
    desk.hang_up(ids[1]);
    CHECK(desk.host().connected.empty());
  }
  SECTION("and stay when another's goes") {
    desk.hang_up(ids[0]);
    CHECK(desk.host().connected.size() == 1);
  }
}

TEST_CASE("queue pairs that cannot be are refused with the pipeline, and the job goes on") {
  Desk desk;
  const auto ids = desk.start("job", 2);
  CHECK_THAT(answer_to(desk, ids[0], asks({0}, 1)).refusal(),
             Contains("pipeline 0: this box has no RDMA port"));
  desk.host().has_queue_pairs = true;
  CHECK_THAT(answer_to(desk, ids[0], asks({2}, 2)).refusal(), Contains("no such pipeline"));
  const auto twice = answer_to(desk, ids[0], asks({1, 1}, 3));
  CHECK_THAT(twice.refusal(), Contains("named twice"));
  CHECK(twice.pairs().empty());
  auto odd = asks({0}, 4);
  odd.mutable_queue_pairs()->mutable_pairs(0)->set_mtu(1500);
  CHECK_THAT(answer_to(desk, ids[0], odd).refusal(), Contains("pipeline 0: queue pair: mtu 1500"));
  CHECK(desk.job_count() == 1);
  CHECK(answer_to(desk, ids[0], asks({0}, 5)).refusal() == "");
}

TEST_CASE("a worker that is not a member of a job gets no queue pair") {
  Desk desk;
  desk.host().has_queue_pairs = true;
  const ConnectionId id = desk.open();
  desk.say(id, asks({0}, 1));
  CHECK_THAT(desk.take_failure(id).message(), Contains("the first message must be JOIN"));
  CHECK(desk.host().connected.empty());
}

}  // namespace pbox::control
