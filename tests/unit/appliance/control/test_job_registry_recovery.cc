// Jobs whose box was lost: what their workers bring along, and where they go on.
#include <catch2/catch.hpp>

#include "tests/unit/appliance/control/registry_desk.h"

namespace pbox::control::job_registry_recovery_test {
namespace {

using Catch::Contains;

proto::WorkerMessage join_with(uint32_t rank, LostPolicy policy = LostPolicy::kWait) {
  auto message = join_message("job", rank, 2);
  message.mutable_join()->set_on_worker_lost(static_cast<uint32_t>(policy));
  message.mutable_join()->set_incarnation(1000 + rank);
  return message;
}

proto::WorkerMessage resume(proto::WorkerMessage message, const proto::Session& session) {
  message.mutable_join()->set_resumes(true);
  message.mutable_join()->set_epoch(session.epoch());
  message.mutable_join()->set_generation(session.generation());
  return message;
}

proto::WorkerMessage rejoin(proto::WorkerMessage message) {
  message.mutable_join()->set_incarnation(7);
  message.mutable_join()->set_rejoins(true);
  return message;
}

proto::WorkerMessage rounds_message(const std::vector<uint32_t>& rounds, uint32_t first = 0,
                                    bool last = true) {
  proto::WorkerMessage message;
  auto& map = *message.mutable_rounds();
  map.set_first_chunk(first);
  map.mutable_rounds()->Add(rounds.begin(), rounds.end());
  map.set_last(last);
  return message;
}

// Starts a job of two ranks, and crashes the box. Returns the sessions that the ranks had.
std::vector<proto::Session> crashed(Desk& desk, LostPolicy policy = LostPolicy::kWait) {
  std::vector<ConnectionId> ids;
  for (const uint32_t rank : {0u, 1u}) ids.push_back(desk.join(join_with(rank, policy)));
  std::vector<proto::Session> sessions;
  for (const ConnectionId id : ids) sessions.push_back(desk.take(id).at(0).session());
  REQUIRE(sessions[0].chunk_pipeline().size() == 4);
  desk.crash();
  return sessions;
}

struct Answer {
  proto::Session session;
  std::vector<uint32_t> rounds, give;
};

Answer answer(Desk& desk, ConnectionId id) {
  Answer answer;
  const auto messages = desk.take(id);
  REQUIRE(messages.size() == 2);
  answer.session = messages[0].session();
  CHECK(answer.session.has_rounds());
  const auto& map = messages[1].rounds();
  CHECK(map.last());
  answer.rounds.assign(map.rounds().begin(), map.rounds().end());
  answer.give.assign(map.give().begin(), map.give().end());
  return answer;
}

}  // namespace

TEST_CASE("a job goes on after its box was lost, from what its workers have consumed") {
  Desk desk;
  const auto sessions = crashed(desk);
  const ConnectionId first = desk.join(resume(join_with(0), sessions[0]));
  desk.say(first, rounds_message({5, 5}, 0, false));
  desk.say(first, rounds_message({6, 5}, 2));
  CHECK(desk.take(first).empty());
  CHECK(desk.registry().views(desk.now_ns())[0].state == "recovering");
  const ConnectionId second = desk.join(resume(join_with(1), sessions[1]));
  CHECK(desk.take(first).empty());  // rank 1 has not stated its rounds
  desk.say(second, rounds_message({6, 5, 6, 6}));

  const Answer zero = answer(desk, first);
  const Answer one = answer(desk, second);
  CHECK(zero.session.epoch() > sessions[0].epoch());
  CHECK(zero.session.epoch() == one.session.epoch());
  CHECK(zero.rounds == std::vector<uint32_t>{5, 5, 6, 5});
  CHECK(one.rounds == zero.rounds);
  CHECK(zero.give.empty());
  CHECK(one.give == std::vector<uint32_t>{0, 3});
  CHECK(desk.registry().totals().jobs_recovered == 1);
  for (uint32_t pipeline = 0; pipeline < 2; ++pipeline) {
    auto* shard = desk.host().shards(pipeline)[0];
    CHECK(shard->epoch == zero.session.epoch());
    for (const auto& chunk : shard->chunks()) {
      CHECK(chunk.open_round() == zero.rounds[chunk.id]);
      CHECK(chunk.copy_rank == (chunk.id % 3 == 0 ? 1 : pipeline::kNoRank));
    }
  }
}

TEST_CASE("a rank that died with the box is replaced by one that says so") {
  Desk desk;
  const auto sessions = crashed(desk);
  const ConnectionId first = desk.join(resume(join_with(0), sessions[0]));
  desk.say(first, rounds_message({3, 3, 4, 4}));
  CHECK_THAT(desk.take_failure(desk.join(join_with(1))).message(),
             Contains("is new, but the other ranks resume a running job") && Contains("rejoin"));
  const ConnectionId second = desk.join(rejoin(join_with(1)));
  // The new rank begins the first tensor at round 3. Rank 0 gives back that round's result of the
  // tensor's last chunk.
  const Answer holder = answer(desk, first);
  CHECK(holder.rounds == std::vector<uint32_t>{3, 3, 3, 4});
  CHECK(holder.give == std::vector<uint32_t>{2});
  const Answer fresh = answer(desk, second);
  CHECK(fresh.rounds == std::vector<uint32_t>{3, 3, 3, 4});
  CHECK(fresh.give.empty());
}

TEST_CASE("a new rank in a recovered job may need results that only the others have") {
  Desk desk;
  const auto sessions = crashed(desk);
  const ConnectionId first = desk.join(resume(join_with(0), sessions[0]));
  desk.say(first, rounds_message({3, 3, 4, 4}));
  const ConnectionId second = desk.join(resume(join_with(1), sessions[1]));
  desk.say(second, rounds_message({3, 3, 4, 4}));
  const Answer before = answer(desk, first);
  CHECK(before.rounds == std::vector<uint32_t>{3, 3, 4, 4});
  desk.hang_up(second);
  // The new rank begins the first tensor at round 3. The box was lost with that round's result of
  // the tensor's last chunk.
  const ConnectionId fresh = desk.join(rejoin(join_with(1)));
  CHECK(desk.is_closed(first));
  const ConnectionId again = desk.join(resume(join_with(0), before.session));
  desk.say(again, rounds_message({3, 3, 4, 4}));
  const Answer holder = answer(desk, again);
  CHECK(holder.rounds == std::vector<uint32_t>{3, 3, 3, 4});
  CHECK(holder.give == std::vector<uint32_t>{2});
  CHECK(answer(desk, fresh).rounds == holder.rounds);
}

TEST_CASE("a rank that is new in a lost box's job has yet to come to the barrier others wait at") {
  for (const bool is_new : {false, true}) {
    Desk desk;
    const auto sessions = crashed(desk);
    auto waiting = resume(join_with(0), sessions[0]);
    waiting.mutable_join()->set_barrier_sequence(3);
    waiting.mutable_join()->set_barriers_released(2);
    const ConnectionId first = desk.join(waiting);
    desk.say(first, rounds_message({3, 3, 4, 4}));
    auto other = is_new ? rejoin(join_with(1)) : resume(join_with(1), sessions[1]);
    other.mutable_join()->set_barrier_sequence(is_new ? 0 : 3);
    const ConnectionId second = desk.join(other);
    if (!is_new) desk.say(second, rounds_message({3, 3, 4, 4}));
    CHECK(answer(desk, first).session.barrier_released() == (is_new ? 2 : 3));
  }
}

TEST_CASE("a job that was begun anew takes nobody of the old one") {
  Desk desk;
  const auto sessions = crashed(desk);
  desk.join(join_with(0));
  CHECK_THAT(desk.take_failure(desk.join(resume(join_with(1), sessions[1]))).message(),
             Contains("other ranks begin a new run"));
}

TEST_CASE("a rank that alone can give back a round, and is replaced, makes the job gather again") {
  Desk desk;
  const auto sessions = crashed(desk);
  ConnectionId first = desk.join(resume(join_with(0), sessions[0]));
  desk.say(first, rounds_message({5, 5, 5, 5}));
  const ConnectionId second = desk.join(resume(join_with(1), sessions[1]));
  desk.say(second, rounds_message({6, 5, 5, 5}));
  const Answer before = answer(desk, first);
  CHECK(answer(desk, second).give == std::vector<uint32_t>{0});
  desk.hang_up(second);
  const ConnectionId fresh = desk.join(rejoin(join_with(1)));
  CHECK(desk.take(fresh).empty());
  CHECK(desk.is_closed(first));  // without a message, so that the worker joins again
  CHECK(desk.take(first).empty());
  first = desk.join(resume(join_with(0), before.session));
  desk.say(first, rounds_message({5, 5, 5, 5}));
  const Answer after = answer(desk, first);
  CHECK(after.session.epoch() > before.session.epoch());
  CHECK(after.rounds == std::vector<uint32_t>{5, 5, 5, 5});
  CHECK(after.give.empty());
  CHECK(answer(desk, fresh).rounds == after.rounds);
}

TEST_CASE("a rank that must still give back a round is asked again when its connection broke") {
  Desk desk;
  const auto sessions = crashed(desk);
  const ConnectionId first = desk.join(resume(join_with(0), sessions[0]));
  desk.say(first, rounds_message({5, 5, 5, 5}));
  const ConnectionId second = desk.join(resume(join_with(1), sessions[1]));
  desk.say(second, rounds_message({6, 5, 5, 5}));
  const Answer before = answer(desk, second);
  desk.hang_up(second);
  const ConnectionId again = desk.join(resume(join_with(1), before.session));
  desk.say(again, rounds_message({6, 5, 5, 5}));
  CHECK(answer(desk, again).give == std::vector<uint32_t>{0});
}

TEST_CASE("a rank that never heard the session of the new epoch is not held to have missed it") {
  Desk desk;
  const auto sessions = crashed(desk);
  const ConnectionId first = desk.join(resume(join_with(0), sessions[0]));
  desk.say(first, rounds_message({5, 5, 5, 5}));
  const ConnectionId second = desk.join(resume(join_with(1), sessions[1]));
  desk.say(second, rounds_message({5, 5, 5, 5}));
  const bool noticed = GENERATE(false, true);
  if (noticed) desk.hang_up(second);
  const ConnectionId again = desk.join(resume(join_with(1), sessions[1]));
  desk.say(again, rounds_message({5, 5, 5, 5}));
  CHECK(answer(desk, again).session.epoch() == answer(desk, first).session.epoch());
}

TEST_CASE("a rank that does not come back to a recovering job is named") {
  Desk desk({.dead_after_ns = 2 * kSecond, .lost_timeout_ns = 3 * kSecond});
  const auto sessions = crashed(desk);
  const ConnectionId first = desk.join(resume(join_with(0), sessions[0]));
  desk.say(first, rounds_message({5, 5, 5, 5}));
  desk.pass(4900 * kMilli, {first});
  CHECK(desk.take(first).empty());
  desk.pass(200 * kMilli, {first});
  const auto failure = desk.take_failure(first);
  CHECK(failure.code() == static_cast<uint32_t>(ErrorCode::kWorkerLost));
  CHECK_THAT(failure.message(), Contains("the box was lost") && Contains("rank 1"));
}

TEST_CASE("policy partial recovers without the ranks that do not come back") {
  Desk desk({.dead_after_ns = kSecond, .lost_timeout_ns = kSecond});
  const auto sessions = crashed(desk, LostPolicy::kPartial);
  const ConnectionId first = desk.join(resume(join_with(0, LostPolicy::kPartial), sessions[0]));
  desk.say(first, rounds_message({5, 5, 5, 5}));
  desk.pass(2100 * kMilli, {first});
  const Answer zero = answer(desk, first);
  CHECK(zero.session.generation() == sessions[0].generation() + 1);
  REQUIRE(zero.session.absent_ranks_size() == 1);
  CHECK(zero.session.absent_ranks(0) == 1);
  CHECK(desk.host().shards(0)[0]->present_count() == 1);
  const auto late = resume(join_with(1, LostPolicy::kPartial), sessions[1]);
  CHECK_THAT(desk.take_failure(desk.join(late)).message(), Contains("gone on without it"));
}

TEST_CASE("a rank that began behind a round lost with the box starts again, and the others go on") {
  Desk desk;
  const auto sessions = crashed(desk);
  const ConnectionId first = desk.join(resume(join_with(0), sessions[0]));
  desk.say(first, rounds_message({4, 4, 4, 4}));
  const ConnectionId second = desk.join(resume(join_with(1), sessions[1]));
  auto message = rounds_message({5, 4, 4, 4});
  message.mutable_rounds()->add_lacks(0);
  desk.say(second, message);
  const auto failure = desk.take_failure(second);
  CHECK(failure.code() == static_cast<uint32_t>(ErrorCode::kWorkerLost));
  CHECK_THAT(failure.message(), Contains("left behind") && Contains("rejoin"));
  CHECK(desk.take(first).empty());
  const ConnectionId fresh = desk.join(rejoin(join_with(1)));
  CHECK(answer(desk, first).rounds == std::vector<uint32_t>{4, 4, 4, 4});
  CHECK(answer(desk, fresh).rounds == std::vector<uint32_t>{4, 4, 4, 4});
}

TEST_CASE("a rank that the job had gone on without does not hold up its recovery, nor end it") {
  Desk desk;
  const auto sessions = crashed(desk, LostPolicy::kPartial);
  auto survivor = resume(join_with(0, LostPolicy::kPartial), sessions[0]);
  survivor.mutable_join()->set_generation(2);
  survivor.mutable_join()->add_absent_ranks(1);
  const auto excluded = resume(join_with(1, LostPolicy::kPartial), sessions[1]);
  ConnectionId early = 0;
  SECTION("it comes first") {
    early = desk.join(excluded);
  }
  SECTION("it comes last") {}
  const ConnectionId first = desk.join(survivor);
  desk.say(first, rounds_message({50, 50, 50, 50}));
  const Answer zero = answer(desk, first);
  CHECK(zero.rounds == std::vector<uint32_t>{50, 50, 50, 50});
  CHECK(zero.session.generation() == 3);
  CHECK(zero.session.absent_ranks(0) == 1);
  const ConnectionId late = early != 0 ? early : desk.join(excluded);
  CHECK(desk.take_failure(late).code() == static_cast<uint32_t>(ErrorCode::kWorkerLost));
}

TEST_CASE("a rank excluded in a later epoch is left behind, whatever its generation was") {
  Desk desk;
  const auto sessions = crashed(desk, LostPolicy::kPartial);
  auto survivor = resume(join_with(0, LostPolicy::kPartial), sessions[0]);
  survivor.mutable_join()->set_epoch(sessions[0].epoch() + 1);
  survivor.mutable_join()->set_generation(2);
  survivor.mutable_join()->add_absent_ranks(1);
  auto excluded = resume(join_with(1, LostPolicy::kPartial), sessions[1]);
  excluded.mutable_join()->set_generation(3);
  const ConnectionId second = desk.join(excluded);
  desk.say(second, rounds_message({5, 5, 5, 5}));
  const ConnectionId first = desk.join(survivor);
  desk.say(first, rounds_message({6, 6, 6, 6}));
  CHECK_THAT(desk.take_failure(second).message(), Contains("left behind"));
  CHECK(answer(desk, first).rounds == std::vector<uint32_t>{6, 6, 6, 6});
}

TEST_CASE("in mode optimize weights come back from the workers, the optimizer begins anew") {
  Desk desk;
  const auto sessions = crashed(desk);
  const auto optimizing = [](proto::WorkerMessage message) {
    message.mutable_join()->set_mode(1);
    message.mutable_join()->mutable_optimizer()->set_kind(2);  // momentum
    message.mutable_join()->mutable_optimizer()->set_learning_rate(0.5f);
    return message;
  };
  auto zero = optimizing(resume(join_with(0), sessions[0]));
  zero.mutable_join()->set_learning_rates_set(3);
  zero.mutable_join()->set_learning_rate(0.125f);
  const ConnectionId first = desk.join(zero);
  desk.say(first, rounds_message({4, 4, 5, 0}));

  SECTION("with the ranks that were there") {
    const ConnectionId second = desk.join(optimizing(resume(join_with(1), sessions[1])));
    desk.say(second, rounds_message({4, 5, 5, 0}));
    const Answer told = answer(desk, first);
    CHECK(told.rounds == std::vector<uint32_t>{3, 4, 4, 0});
    CHECK(told.give == std::vector<uint32_t>{0, 2});
    CHECK(told.session.optimizer_restarted());
    CHECK(answer(desk, second).give == std::vector<uint32_t>{1});
    for (uint32_t pipeline = 0; pipeline < 2; ++pipeline) {
      CHECK(desk.host().shards(pipeline)[0]->optimizer.learning_rate == 0.125f);
    }
    CHECK(desk.registry().totals().optimizer_restarts == 1);
  }
  SECTION("with one that is new, and begins where the others' weights are") {
    const ConnectionId second = desk.join(optimizing(rejoin(join_with(1))));
    CHECK(answer(desk, first).rounds == std::vector<uint32_t>{3, 3, 4, 0});
    const Answer fresh = answer(desk, second);
    CHECK(fresh.rounds == std::vector<uint32_t>{4, 4, 5, 0});
    CHECK(fresh.give.empty());
  }
}

TEST_CASE("state that only the box had is lost with it, and the workers are told") {
  Desk desk;
  const auto sessions = crashed(desk);
  auto message = resume(join_with(0), sessions[0]);
  SECTION("a model other than bsp") {
    message.mutable_join()->set_mode(1);
    message.mutable_join()->mutable_optimizer()->set_kind(1);
    message.mutable_join()->mutable_sync()->set_model(static_cast<uint32_t>(wire::SyncModel::kAsp));
    message.mutable_join()->set_recovery(1);
  }
  SECTION("recovery none") {
    message.mutable_join()->set_recovery(1);
  }
  const auto failure = desk.take_failure(desk.join(message));
  CHECK(failure.code() == static_cast<uint32_t>(ErrorCode::kBoxLost));
  CHECK_THAT(failure.message(), Contains("from a checkpoint"));
  CHECK(desk.job_count() == 0);
}

TEST_CASE("rounds that do not fit the job end the connection of who states them") {
  const std::vector<std::vector<proto::WorkerMessage>> rows = {
      {rounds_message({1, 1, 1})},
      {rounds_message({1, 1, 1, 1, 1})},
      {rounds_message({1, 1, 1, 1}, 1)},
      {rounds_message({1, 1}, 0, false), rounds_message({1, 1}, 0)},
      {rounds_message({1, 1, 1, 1}), rounds_message({1}, 4)},
      {rounds_message({1, 1}, 0, false), rounds_message({}, 2, false)},
  };
  for (size_t row = 0; row < rows.size(); ++row) {
    CAPTURE(row);
    Desk desk;
    const auto sessions = crashed(desk);
    const ConnectionId id = desk.join(resume(join_with(0), sessions[0]));
    for (const auto& message : rows[row]) desk.say(id, message);
    CHECK_THAT(desk.take_failure(id).message(), Contains("the job has 4"));
    CHECK(desk.job_count() == 0);
  }
}

TEST_CASE("an epoch that no box can have given is refused") {
  Desk desk;
  const auto sessions = crashed(desk);
  auto message = resume(join_with(0), sessions[0]);
  message.mutable_join()->set_epoch(UINT32_MAX);
  CHECK_THAT(desk.take_failure(desk.join(message)).message(), Contains("4294967295"));
}

TEST_CASE("barriers go on after the box was lost, released to those who were not told") {
  Desk desk;
  const auto sessions = crashed(desk);
  std::vector<ConnectionId> ids;
  for (const uint32_t rank : {0u, 1u}) {
    auto message = resume(join_with(rank), sessions[rank]);
    message.mutable_join()->set_barrier_sequence(4 + rank);
    ids.push_back(desk.join(message));
    desk.say(ids[rank], rounds_message({5, 5, 5, 5}));
  }
  for (const ConnectionId id : ids) CHECK(answer(desk, id).session.barrier_released() == 4);
  desk.say(ids[0], barrier_message(5));
  CHECK(desk.take(ids[1]).at(0).barrier_released().sequence() == 5);
}

}  // namespace pbox::control::job_registry_recovery_test
