// Ranks of a running job that are lost, come back, or stay away.
#include <catch2/catch.hpp>
#include <set>

#include "tests/unit/appliance/control/registry_desk.h"

namespace pbox::control::job_registry_members_test {
namespace {

using Catch::Contains;

constexpr uint64_t kIncarnation = 1000;  // incarnation of rank 0; rank 1 has one more, ...

proto::WorkerMessage join_with(uint32_t rank, uint32_t world_size,
                               LostPolicy policy = LostPolicy::kWait) {
  auto message = join_message("job", rank, world_size);
  message.mutable_join()->set_on_worker_lost(static_cast<uint32_t>(policy));
  message.mutable_join()->set_incarnation(kIncarnation + rank);
  return message;
}

proto::WorkerMessage rejoin(proto::WorkerMessage message) {
  message.mutable_join()->set_incarnation(7);
  message.mutable_join()->set_rejoins(true);
  return message;
}

proto::WorkerMessage resume(proto::WorkerMessage message, const proto::Session& session) {
  message.mutable_join()->set_resumes(true);
  message.mutable_join()->set_epoch(session.epoch());
  message.mutable_join()->set_generation(session.generation());
  return message;
}

struct Running {
  std::vector<ConnectionId> ids;
  std::vector<proto::Session> sessions;
};

Running start(Desk& desk, uint32_t world_size, LostPolicy policy = LostPolicy::kWait) {
  Running job;
  for (uint32_t rank = 0; rank < world_size; ++rank) {
    job.ids.push_back(desk.join(join_with(rank, world_size, policy)));
  }
  for (const ConnectionId id : job.ids) job.sessions.push_back(desk.take(id).at(0).session());
  return job;
}

std::set<uint32_t> spis(const proto::Session& session) {
  std::set<uint32_t> all;
  for (const auto& pipeline : session.pipelines()) all.insert(pipeline.spi());
  return all;
}

// Checks that the messages are SESSION and then the open rounds. Returns the SESSION.
proto::Session returned(const std::vector<proto::BoxMessage>& messages) {
  REQUIRE(messages.size() == 2);
  REQUIRE(messages[0].has_session());
  CHECK(messages[0].session().has_rounds());
  REQUIRE(messages[1].has_rounds());
  CHECK(messages[1].rounds().last());
  CHECK(messages[1].rounds().first_chunk() == 0);
  CHECK(static_cast<size_t>(messages[1].rounds().rounds_size()) ==
        messages[0].session().chunk_pipeline().size());
  return messages[0].session();
}

}  // namespace

TEST_CASE("a worker whose connection broke goes on in the same epoch with new sessions") {
  Desk desk({.lost_timeout_ns = 3 * kSecond});
  const Running job = start(desk, 2);
  desk.hang_up(job.ids[1]);
  desk.pass(2 * kSecond, {job.ids[0]});
  const ConnectionId again = desk.join(resume(join_with(1, 2), job.sessions[1]));
  const auto session = returned(desk.take(again));
  CHECK(session.epoch() == job.sessions[1].epoch());
  CHECK(session.generation() == job.sessions[1].generation());
  for (const uint32_t spi : spis(session)) CHECK(spis(job.sessions[1]).count(spi) == 0);
  desk.pass(5 * kSecond, {job.ids[0], again});
  CHECK(desk.take(job.ids[0]).empty());
  CHECK(desk.job_count() == 1);
  CHECK(desk.registry().totals().workers_back == 1);
}

TEST_CASE("a worker that is quicker than the end of its connection takes its own place") {
  Desk desk;
  const Running job = start(desk, 2);
  const ConnectionId again = desk.join(resume(join_with(1, 2), job.sessions[1]));
  returned(desk.take(again));
  CHECK(desk.is_closed(job.ids[1]));
  desk.pass(kSecond, {job.ids[0], again});
  CHECK(desk.registry().totals().workers_lost == 0);

  const ConnectionId stranger = desk.join(rejoin(join_with(1, 2)));
  CHECK_THAT(desk.take_failure(stranger).message(),
             Contains("taken") && Contains("still shows signs of life"));
}

TEST_CASE("another process takes a lost rank's place, and the sessions of the first are void") {
  Desk desk({.lost_timeout_ns = 3 * kSecond});
  const Running job = start(desk, 2);
  desk.hang_up(job.ids[1]);
  const ConnectionId again = desk.join(rejoin(join_with(1, 2)));
  const auto session = returned(desk.take(again));
  CHECK(session.epoch() == job.sessions[1].epoch());
  for (uint32_t pipeline = 0; pipeline < 2; ++pipeline) {
    const auto* shard = desk.host().shards(pipeline)[0];
    CHECK(shard->sessions()[1].spi == session.pipelines(static_cast<int>(pipeline)).spi());
    CHECK(shard->sessions()[0].spi == job.sessions[0].pipelines(static_cast<int>(pipeline)).spi());
  }
}

TEST_CASE("a rank that was lost before may not resume in another epoch") {
  Desk desk;
  const Running job = start(desk, 2);
  desk.hang_up(job.ids[1]);
  auto message = resume(join_with(1, 2), job.sessions[1]);
  message.mutable_join()->set_epoch(job.sessions[1].epoch() - 1);
  message.mutable_join()->set_incarnation(7);  // nor was this process admitted to the present epoch
  const auto failure = desk.take_failure(desk.join(message));
  CHECK(failure.code() == static_cast<uint32_t>(ErrorCode::kWorkerLost));
  CHECK_THAT(failure.message(), Contains("left behind") && Contains("rejoin"));
}

TEST_CASE("policy partial goes on without a rank that stays away, and tells the others") {
  Desk desk({.lost_timeout_ns = 3 * kSecond});
  const Running job = start(desk, 3, LostPolicy::kPartial);
  desk.hang_up(job.ids[1], "connection reset by peer");
  desk.pass(2900 * kMilli, {job.ids[0], job.ids[2]});
  CHECK(desk.take(job.ids[0]).empty());
  desk.pass(200 * kMilli, {job.ids[0], job.ids[2]});
  for (const uint32_t rank : {0u, 2u}) {
    const auto messages = desk.take(job.ids[rank]);
    REQUIRE(messages.size() == 1);
    const auto& membership = messages[0].membership();
    CHECK(membership.generation() == job.sessions[0].generation() + 1);
    REQUIRE(membership.absent_ranks_size() == 1);
    CHECK(membership.absent_ranks(0) == 1);
  }
  const auto* shard = desk.host().shards(0)[0];
  CHECK(shard->generation == job.sessions[0].generation() + 1);
  CHECK(shard->present_count() == 2);
  CHECK(desk.registry().views(desk.now_ns())[0].workers[1].state == "excluded");
  CHECK(desk.registry().totals().workers_excluded == 1);

  SECTION("and takes a new process in its place") {
    const ConnectionId again = desk.join(rejoin(join_with(1, 3, LostPolicy::kPartial)));
    const auto session = returned([&] {
      auto messages = desk.take(again);
      std::erase_if(messages, [](const auto& message) { return message.has_membership(); });
      return messages;
    }());
    CHECK(session.generation() == job.sessions[0].generation() + 2);
    CHECK(desk.host().shards(0)[0]->present_count() == 3);
    const auto messages = desk.take(job.ids[0]);
    REQUIRE(messages.size() == 1);
    CHECK(messages[0].membership().absent_ranks_size() == 0);
    CHECK(messages[0].membership().generation() == session.generation());
  }
  SECTION("but not the process that was left behind") {
    const auto message = resume(join_with(1, 3, LostPolicy::kPartial), job.sessions[1]);
    CHECK_THAT(desk.take_failure(desk.join(message)).message(),
               Contains("gone on without it") && Contains("rejoin"));
  }
  SECTION("and ends when the others have left, giving all sessions back") {
    desk.say(job.ids[0], leave_message());
    desk.say(job.ids[2], leave_message());
    CHECK(desk.job_count() == 0);
    CHECK(desk.registry().totals().jobs_finished == 1);
    start(desk, 3);
  }
}

TEST_CASE("a job that begins with rank 0's weights cannot begin without rank 0") {
  Desk desk({.lost_timeout_ns = kSecond});
  std::vector<ConnectionId> ids;
  for (const uint32_t rank : {0u, 1u}) {
    auto message = join_with(rank, 2, LostPolicy::kPartial);
    message.mutable_join()->set_mode(1);
    message.mutable_join()->mutable_optimizer()->set_kind(1);
    message.mutable_join()->mutable_optimizer()->set_learning_rate(1);
    ids.push_back(desk.join(message));
  }
  desk.take(ids[1]);
  desk.hang_up(ids[0]);
  desk.pass(1100 * kMilli, {ids[1]});
  CHECK_THAT(desk.take_failure(ids[1]).message(),
             Contains("rank 0") && Contains("initial weights"));
}

TEST_CASE(
    "a box keeps the weights of a job all of whose ranks are lost, and they come back to it") {
  Desk desk({.lost_timeout_ns = 3 * kSecond});
  std::vector<proto::WorkerMessage> joins;
  std::vector<ConnectionId> ids;
  for (const uint32_t rank : {0u, 1u}) {
    joins.push_back(join_with(rank, 2));
    joins[rank].mutable_join()->set_mode(1);
    joins[rank].mutable_join()->mutable_optimizer()->set_kind(1);
    joins[rank].mutable_join()->mutable_optimizer()->set_learning_rate(1);
    ids.push_back(desk.join(joins[rank]));
  }
  const auto session = desk.take(ids[1]).at(0).session();
  for (const ConnectionId id : ids) desk.hang_up(id);
  CHECK(desk.job_count() == 1);
  CHECK(returned(desk.take(desk.join(rejoin(joins[0])))).epoch() == session.epoch());
  CHECK(returned(desk.take(desk.join(resume(joins[1], session)))).epoch() == session.epoch());
  CHECK(desk.registry().totals().jobs_failed == 0);
}

TEST_CASE("the learning rate follows the lowest rank still in the job") {
  Desk desk({.lost_timeout_ns = kSecond});
  const Running job = start(desk, 3, LostPolicy::kPartial);
  const auto* shard = desk.host().shards(0)[0];
  const auto set = [&](uint32_t rank, float rate, uint64_t sequence) {
    desk.say(job.ids[rank], learning_rate_message(rate, sequence));
    const auto answer = desk.take(job.ids[rank]);
    REQUIRE(answer.size() == 1);
    CHECK(answer[0].learning_rate_set().sequence() == sequence);
  };
  for (const uint32_t rank : {2u, 0u, 1u}) set(rank, 0.25f, 1);
  CHECK(shard->optimizer.learning_rate == 0.25f);
  set(1, 0.125f, 2);  // rank 1 is ahead
  CHECK(shard->optimizer.learning_rate == 0.25f);
  desk.hang_up(job.ids[0]);
  desk.pass(1100 * kMilli, {job.ids[1], job.ids[2]});
  CHECK(shard->optimizer.learning_rate == 0.125f);

  const ConnectionId fresh = desk.join(rejoin(join_with(0, 3, LostPolicy::kPartial)));
  desk.take(job.ids[1]);
  CHECK(shard->optimizer.learning_rate == 0.125f);  // the new process has set none
  set(1, 0.0625f, 3);
  CHECK(shard->optimizer.learning_rate == 0.0625f);
  desk.say(fresh, learning_rate_message(0.5f, 1));
  CHECK(shard->optimizer.learning_rate == 0.5f);
  desk.say(fresh, leave_message());
  CHECK(shard->optimizer.learning_rate == 0.0625f);
}

TEST_CASE("policy abort ends the job as soon as a rank is lost") {
  Desk desk({.lost_timeout_ns = 60 * kSecond});
  const Running job = start(desk, 2, LostPolicy::kAbort);
  desk.hang_up(job.ids[1], "connection reset by peer");
  CHECK_THAT(desk.take_failure(job.ids[0]).message(),
             Contains("rank 1") && Contains("connection reset by peer"));
  CHECK(desk.job_count() == 0);
}

TEST_CASE("a barrier goes on over a broken connection, and does not wait for excluded ranks") {
  Desk desk({.lost_timeout_ns = kSecond});
  const Running job = start(desk, 3, LostPolicy::kPartial);
  desk.say(job.ids[0], barrier_message(1));
  desk.say(job.ids[1], barrier_message(1));
  desk.hang_up(job.ids[0]);
  auto message = resume(join_with(0, 3, LostPolicy::kPartial), job.sessions[0]);
  message.mutable_join()->set_barrier_sequence(1);
  const ConnectionId again = desk.join(message);
  desk.take(again);
  desk.say(job.ids[2], barrier_message(1));
  for (const ConnectionId id : {again, job.ids[1], job.ids[2]}) {
    CHECK(desk.take(id).at(0).barrier_released().sequence() == 1);
  }
  desk.say(again, barrier_message(2));
  desk.say(job.ids[1], barrier_message(2));
  desk.hang_up(job.ids[2]);
  desk.pass(1100 * kMilli, {again, job.ids[1]});
  const auto messages = desk.take(again);
  REQUIRE(messages.size() == 2);
  CHECK(messages[0].has_membership());
  CHECK(messages[1].barrier_released().sequence() == 2);
  const ConnectionId fresh = desk.join(rejoin(join_with(2, 3, LostPolicy::kPartial)));
  for (const auto& answer : desk.take(fresh)) {
    if (answer.has_session()) CHECK(answer.session().barrier_released() == 2);
  }
}

TEST_CASE("a rank that rejoins after others have left is told so, and barriers do not count them") {
  Desk desk;
  const Running job = start(desk, 3);
  for (const ConnectionId id : job.ids) desk.say(id, barrier_message(1));
  desk.hang_up(job.ids[0]);
  desk.say(job.ids[1], leave_message());

  const ConnectionId fresh = desk.join(rejoin(join_with(0, 3)));
  const auto messages = desk.take(fresh);
  REQUIRE(messages.size() == 3);
  REQUIRE(messages[0].has_session());
  REQUIRE(messages[2].has_peer_left());
  CHECK(messages[2].peer_left().rank() == 1);
  desk.take(job.ids[2]);
  const uint64_t next = messages[0].session().barrier_released() + 1;
  desk.say(fresh, barrier_message(next));
  CHECK(desk.take(fresh).empty());
  desk.say(job.ids[2], barrier_message(next));
  CHECK(desk.take(fresh).at(0).barrier_released().sequence() == next);
}

TEST_CASE("a barrier that waits for one who leaves instead goes on") {
  Desk desk;
  const Running job = start(desk, 2);
  desk.say(job.ids[0], barrier_message(1));
  desk.say(job.ids[1], leave_message());
  const auto messages = desk.take(job.ids[0]);
  REQUIRE(messages.size() == 2);
  CHECK(messages[0].has_peer_left());
  CHECK(messages[1].barrier_released().sequence() == 1);
}

TEST_CASE("an elastic job begins once enough ranks are there and nobody has come for a while") {
  Desk desk;
  const auto join_elastic = [](uint32_t rank) {
    auto message = join_with(rank, 4, LostPolicy::kPartial);
    message.mutable_join()->set_min_world_size(2);
    message.mutable_join()->set_rejoins(true);
    return message;
  };
  const ConnectionId first = desk.join(join_elastic(0));
  desk.pass(5 * kSecond, {first});
  CHECK(desk.take(first).empty());  // too few
  const ConnectionId second = desk.join(join_elastic(2));
  desk.pass(2 * kSecond, {first, second});
  const ConnectionId third = desk.join(join_elastic(3));
  desk.pass(2 * kSecond, {first, second, third});
  CHECK(desk.take(first).empty());  // the third has just come
  desk.pass(2 * kSecond, {first, second, third});
  for (const ConnectionId id : {first, second, third}) {
    const auto told = desk.take(id);
    REQUIRE_FALSE(told.empty());
    REQUIRE(told[0].has_session());
    CHECK(std::vector<uint32_t>(told[0].session().absent_ranks().begin(),
                                told[0].session().absent_ranks().end()) ==
          std::vector<uint32_t>{1});
  }
  CHECK(desk.registry().totals().workers_excluded == 0);
  const ConnectionId late = desk.join(join_elastic(1));
  // As when an excluded rank comes back, the new membership goes to all ranks first.
  auto told_late = desk.take(late);
  told_late.erase(told_late.begin());
  returned(told_late);
  const auto told = desk.take(first);
  REQUIRE(told.size() == 1);
  REQUIRE(told[0].has_membership());
  CHECK(told[0].membership().absent_ranks().empty());
}

}  // namespace pbox::control::job_registry_members_test
