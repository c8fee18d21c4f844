// Priorities: who may set them, who is told, and what the pipelines have then.
#include <catch2/catch.hpp>

#include "tests/unit/appliance/control/registry_desk.h"

namespace pbox::control::job_registry_priorities_test {
namespace {

using Policy = wire::PriorityPolicy;
using List = std::vector<int32_t>;

proto::WorkerMessage join_with(Policy policy, uint32_t rank, uint32_t world_size) {
  auto message = join_message("job", rank, world_size);
  message.mutable_join()->set_priority_policy(static_cast<uint32_t>(policy));
  message.mutable_join()->mutable_tensors(0)->set_priority(4);
  message.mutable_join()->mutable_tensors(1)->set_priority(5);
  return message;
}

// Returns the priorities of the job's two tensors. The second tensor is the last chunk; all other
// chunks have one priority.
List by_tensor(Desk& desk) {
  List priorities(2, INT32_MIN);
  uint32_t last = 0;
  for (uint32_t pipeline = 0; pipeline < 2; ++pipeline) {
    for (const auto& chunk : desk.host().shards(pipeline)[0]->chunks()) {
      last = std::max(last, chunk.id);
    }
  }
  for (uint32_t pipeline = 0; pipeline < 2; ++pipeline) {
    for (const auto& chunk : desk.host().shards(pipeline)[0]->chunks()) {
      int32_t& priority = priorities[chunk.id == last ? 1 : 0];
      CHECK((priority == INT32_MIN || priority == chunk.priority));
      priority = chunk.priority;
    }
  }
  return priorities;
}

std::vector<ConnectionId> start(Desk& desk, Policy policy) {
  std::vector<ConnectionId> ids;
  for (const uint32_t rank : {0u, 1u}) ids.push_back(desk.join(join_with(policy, rank, 2)));
  for (const ConnectionId id : ids) {
    const auto messages = desk.take(id);
    REQUIRE(messages.size() == 1);
    REQUIRE(messages[0].has_session());
  }
  return ids;
}

JobView view(Desk& desk) {
  return desk.registry().views(desk.now_ns())[0];
}

}  // namespace

TEST_CASE("a job begins with the priorities that its policy makes of those registered") {
  const struct {
    Policy policy;
    List priorities;
    const char *name, *source;
  } rows[] = {{Policy::kExplicit, {4, 5}, "explicit", "registered"},
              {Policy::kForwardOrder, {4, 5}, "forward-order", "registered"},
              {Policy::kFifo, {0, 0}, "fifo", "none"}};
  for (const auto& row : rows) {
    Desk desk;
    start(desk, row.policy);
    CHECK(by_tensor(desk) == row.priorities);
    CHECK(view(desk).priority_policy == row.name);
    CHECK(view(desk).priority_source == row.source);
    CHECK(view(desk).delivery == "broadcast");
  }
}

TEST_CASE("priorities that one rank sets reach the pipelines and every rank, itself included") {
  Desk desk;
  const auto ids = start(desk, Policy::kForwardOrder);
  const auto others = desk.start("other", 1);
  desk.say(ids[1], priorities_message(1, {2, 1}));
  CHECK(by_tensor(desk) == List{2, 1});
  for (const ConnectionId id : ids) {
    const auto messages = desk.take(id);
    REQUIRE(messages.size() == 1);
    CHECK(messages[0].set_priorities().policy() == 1);
    CHECK(messages[0].set_priorities().by_tensor_size() == 2);
    CHECK(messages[0].set_priorities().by_tensor(0) == 2);
  }
  CHECK(desk.take(others[0]).empty());
  CHECK(view(desk).priority_source == "learned");
  desk.say(ids[0], priorities_message(0, {7, 9}));
  CHECK(by_tensor(desk) == List{7, 9});
  CHECK(view(desk).priority_source == "set");
}

TEST_CASE("the operator may set a policy, and takes back by it what was learned") {
  Desk desk;
  const auto ids = start(desk, Policy::kForwardOrder);
  desk.say(ids[0], priorities_message(1, {2, 1}));
  desk.take(ids[1]);
  REQUIRE(desk.registry().requests().set_priorities("job", Policy::kFifo));
  CHECK(by_tensor(desk) == List{0, 0});
  REQUIRE(desk.registry().requests().set_priorities("job", Policy::kForwardOrder));
  CHECK(by_tensor(desk) == List{4, 5});
  CHECK(view(desk).priority_source == "registered");
  const Status unknown = desk.registry().requests().set_priorities("jib", Policy::kFifo);
  REQUIRE_FALSE(unknown);
  CHECK(unknown.error().code == ErrorCode::kNotFound);
  CHECK_THAT(unknown.error().message, Catch::Contains("'jib'"));
  desk.pass(100 * kMilli, ids);  // delivers the messages
  const auto messages = desk.take(ids[1]);
  REQUIRE(messages.size() >= 2);
  CHECK(messages[0].set_priorities().policy() == 2);
  CHECK(messages[1].set_priorities().policy() == 1);
}

TEST_CASE("a rank that joins after priorities were set gets them before its session") {
  Desk desk;
  const ConnectionId first = desk.join(join_with(Policy::kExplicit, 0, 2));
  REQUIRE(desk.registry().requests().set_priorities("job", Policy::kFifo));
  const ConnectionId second = desk.join(join_with(Policy::kExplicit, 1, 2));
  for (const ConnectionId id : {first, second}) {
    const auto messages = desk.take(id);
    REQUIRE(messages.size() == 2);
    CHECK(messages[0].set_priorities().policy() == 2);
    CHECK(messages[1].has_session());
  }
  CHECK(by_tensor(desk) == List{0, 0});

  desk.hang_up(second);
  auto again = join_with(Policy::kExplicit, 1, 2);
  again.mutable_join()->set_rejoins(true);
  const ConnectionId third = desk.join(again);
  const auto messages = desk.take(third);
  REQUIRE(messages.size() == 3);  // the third has the rounds
  CHECK(messages[0].set_priorities().policy() == 2);
  CHECK(messages[1].has_session());
}

TEST_CASE("priorities that do not fit the job are refused and change nothing") {
  for (const auto& [policy, priorities] : std::vector<std::pair<uint32_t, List>>{
           {3, {}}, {0, {1}}, {0, {1, 2, 3}}, {1, {1}}, {2, {1, 2}}}) {
    Desk desk;
    const auto ids = start(desk, Policy::kExplicit);
    desk.say(ids[0], priorities_message(policy, priorities));
    CHECK_THAT(desk.take_failure(ids[0]).message(),
               Catch::Contains("priority policy " + std::to_string(policy)) &&
                   Catch::Contains("2 tensors"));
    CHECK(by_tensor(desk) == List{4, 5});
    CHECK(desk.take(ids[1]).empty());
  }
}

}  // namespace pbox::control::job_registry_priorities_test
