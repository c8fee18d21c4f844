// Jobs whose consistency model is not BSP: how the box treats them, and which ranks may come back.
#include <catch2/catch.hpp>

#include "appliance/control/sync_spec.h"
#include "nic/wire/sync_message.h"
#include "tests/unit/appliance/control/registry_desk.h"

namespace pbox::control::job_registry_sync_test {
namespace {

using Catch::Contains;
using wire::SyncModel;

proto::WorkerMessage join_with(uint32_t rank, SyncModel model, LostPolicy policy) {
  auto message = join_message("job", rank, 2);
  proto::Join& join = *message.mutable_join();
  join.set_mode(1);
  join.set_recovery(1);
  join.set_on_worker_lost(static_cast<uint32_t>(policy));
  join.set_incarnation(1000 + rank);
  join.mutable_optimizer()->set_kind(1);
  join.mutable_sync()->set_model(static_cast<uint32_t>(model));
  if (model == SyncModel::kDrop) join.mutable_sync()->set_quorum(1);
  return message;
}

std::vector<ConnectionId> start(Desk& desk, SyncModel model,
                                LostPolicy policy = LostPolicy::kWait) {
  std::vector<ConnectionId> ids;
  for (const uint32_t rank : {0u, 1u}) ids.push_back(desk.join(join_with(rank, model, policy)));
  return ids;
}

// Sets all chunks to the state in which the box has the initial weights.
void finish_first_round(Desk& desk) {
  for (pipeline::Chunk* chunk : chunks_of(desk)) chunk->rounds_finished = 1;
}

proto::WorkerMessage heartbeat(const std::vector<uint64_t>& reads) {
  proto::WorkerMessage message;
  message.mutable_heartbeat()->set_sequence(3);
  for (const uint64_t count : reads) message.mutable_heartbeat()->add_reads_by_staleness(count);
  return message;
}

}  // namespace

TEST_CASE("a job's model reaches every shard of it, and the view of the job") {
  for (const auto model : {SyncModel::kAsp, SyncModel::kSsp, SyncModel::kEssp, SyncModel::kPssp,
                           SyncModel::kDpssp, SyncModel::kDrop}) {
    Desk desk;
    auto messages = {join_with(0, model, LostPolicy::kWait),
                     join_with(1, model, LostPolicy::kWait)};
    for (auto message : messages) {
      if (model == SyncModel::kPssp) message.mutable_join()->mutable_sync()->set_probability(0.5f);
      if (model == SyncModel::kDpssp) message.mutable_join()->mutable_sync()->set_probability(1);
      const ConnectionId id = desk.join(message);
      CHECK_FALSE(desk.is_closed(id));
    }
    for (const uint32_t pipeline : {0u, 1u}) {
      REQUIRE(desk.host().shards(pipeline).size() == 1);
      CHECK(desk.host().shards(pipeline)[0]->relaxed_model == model);
      CHECK(desk.host().shards(pipeline)[0]->chunks()[0].sync->spec.model == model);
    }
    const JobView view = desk.registry().views(desk.now_ns()).at(0);
    CHECK(view.sync.model == to_string(model));
    CHECK(view.sync.reads == (model == SyncModel::kEssp ? "cached" : "fresh"));
    CHECK(view.pulls.has_value() == (model != SyncModel::kDrop));
    CHECK(view.workers[1].dropped_fragments.has_value() == (model == SyncModel::kDrop));
  }
}

TEST_CASE("a rank whose connection broke goes on by its clocks, in the same epoch") {
  const auto model = GENERATE(SyncModel::kAsp, SyncModel::kEssp, SyncModel::kDrop);
  Desk desk({.lost_timeout_ns = 3 * kSecond});
  const auto ids = start(desk, model);
  const auto session = desk.take(ids[1]).at(0).session();
  desk.hang_up(ids[1]);
  auto again = join_with(1, model, LostPolicy::kWait);
  again.mutable_join()->set_resumes(true);
  again.mutable_join()->set_epoch(session.epoch());
  again.mutable_join()->set_generation(session.generation());
  const ConnectionId back = desk.join(again);
  const auto messages = desk.take(back);
  REQUIRE(messages.size() >= 2);
  CHECK(messages[0].session().epoch() == session.epoch());
  CHECK(messages[0].session().has_rounds());
  CHECK(messages[1].rounds().last());
  CHECK(desk.registry().totals().workers_back == 1);
  desk.take(ids[0]);
  desk.pass(4 * kSecond, {ids[0], back});
  CHECK(desk.job_count() == 1);
  CHECK_FALSE(desk.is_closed(ids[0]));
}

TEST_CASE("another process takes a lost rank's place, but only before the rank is excluded") {
  Desk desk({.lost_timeout_ns = 3 * kSecond});
  const auto ids = start(desk, SyncModel::kSsp, LostPolicy::kPartial);
  desk.take(ids[0]);
  auto fresh = join_with(1, SyncModel::kSsp, LostPolicy::kPartial);
  fresh.mutable_join()->set_rejoins(true);
  fresh.mutable_join()->set_incarnation(7);
  desk.hang_up(ids[1]);
  const ConnectionId second = desk.join(fresh);
  CHECK(desk.take(second).at(0).session().has_rounds());
  desk.hang_up(second);
  desk.pass(4 * kSecond, {ids[0]});
  CHECK(desk.registry().totals().workers_excluded == 1);
  fresh.mutable_join()->set_incarnation(8);
  const auto failure = desk.take_failure(desk.join(fresh));
  CHECK(failure.code() == static_cast<uint32_t>(ErrorCode::kWorkerLost));
  CHECK_THAT(failure.message(), Contains("rank 1") && Contains("sync.model ssp") &&
                                    Contains("excluded") && Contains("start all ranks again"));
}

TEST_CASE("with drop another process takes a lost rank's place at any time") {
  Desk desk({.lost_timeout_ns = 3 * kSecond});
  const auto ids = start(desk, SyncModel::kDrop, LostPolicy::kPartial);
  desk.take(ids[0]);
  auto fresh = join_with(1, SyncModel::kDrop, LostPolicy::kPartial);
  fresh.mutable_join()->set_rejoins(true);
  fresh.mutable_join()->set_incarnation(7);
  desk.hang_up(ids[1]);
  desk.pass(4 * kSecond, {ids[0]});
  CHECK(desk.registry().totals().workers_excluded == 1);
  const ConnectionId back = desk.join(fresh);
  auto messages = desk.take(back);
  std::erase_if(messages, [](const auto& message) { return message.has_membership(); });
  CHECK(messages.at(0).session().has_rounds());
  CHECK(desk.registry().totals().workers_back == 1);
}

TEST_CASE("a rank that leaves does not count for the quorum of drop, and may come again") {
  Desk desk;
  const auto ids = start(desk, SyncModel::kDrop, LostPolicy::kPartial);
  const auto& shard = *desk.host().shards(0)[0];
  finish_first_round(desk);
  desk.take(ids[0]);
  desk.say(ids[1], leave_message());
  const auto messages = desk.take(ids[0]);
  REQUIRE(messages.size() == 1);
  CHECK(messages[0].membership().absent_ranks_size() == 1);
  CHECK(shard.present_count() == 1);
  CHECK(desk.registry().views(desk.now_ns()).at(0).workers[1].state == "left");
  CHECK(desk.registry().totals().workers_excluded == 0);
  auto again = join_with(1, SyncModel::kDrop, LostPolicy::kPartial);
  again.mutable_join()->set_incarnation(7);
  CHECK_THAT(desk.take_failure(desk.join(again)).message(),
             Contains("rank 1") && Contains("has left") && Contains("with rejoin"));
  again.mutable_join()->set_rejoins(true);
  desk.join(again);
  CHECK(shard.present_count() == 2);
  CHECK(desk.registry().views(desk.now_ns()).at(0).workers[1].state == "joined");
}

TEST_CASE("a job of drop ends when its last rank leaves") {
  Desk desk;
  const auto ids = start(desk, SyncModel::kDrop, LostPolicy::kPartial);
  finish_first_round(desk);
  for (const ConnectionId id : ids) desk.say(id, leave_message());
  CHECK(desk.job_count() == 0);
  CHECK(desk.registry().totals().jobs_finished == 1);
  CHECK(desk.registry().memory_taken_bytes() == 0);
}

TEST_CASE("with drop and policy wait those that go on are told that a rank has left") {
  Desk desk;
  const auto ids = start(desk, SyncModel::kDrop);
  finish_first_round(desk);
  desk.take(ids[0]);
  desk.say(ids[1], leave_message());
  CHECK(desk.take(ids[0]).at(0).peer_left().rank() == 1);
  CHECK(desk.host().shards(0)[0]->present_count() == 2);
}

TEST_CASE("a lost rank is waited for as long as in any job") {
  Desk desk({.lost_timeout_ns = 3 * kSecond});
  const auto ids = start(desk, SyncModel::kAsp);
  desk.take(ids[0]);
  desk.hang_up(ids[1]);
  desk.pass(2 * kSecond, {ids[0]});
  CHECK(desk.job_count() == 1);
  desk.pass(2 * kSecond, {ids[0]});
  CHECK(desk.take_failure(ids[0]).code() == static_cast<uint32_t>(ErrorCode::kWorkerLost));
}

TEST_CASE("such a job ends with its box") {
  Desk desk;
  const auto ids = start(desk, SyncModel::kSsp);
  const auto session = desk.take(ids[0]).at(0).session();
  desk.crash();
  auto again = join_with(0, SyncModel::kSsp, LostPolicy::kWait);
  again.mutable_join()->set_resumes(true);
  again.mutable_join()->set_epoch(session.epoch());
  const auto failure = desk.take_failure(desk.join(again));
  CHECK(failure.code() == static_cast<uint32_t>(ErrorCode::kBoxLost));
  CHECK_THAT(failure.message(), Contains("sync.model ssp") && Contains("from a checkpoint"));
  CHECK(desk.job_count() == 0);
}

TEST_CASE("when all its ranks are lost the box keeps such a job for the lost time-out") {
  Desk desk({.lost_timeout_ns = 30 * kSecond});
  const auto ids = start(desk, SyncModel::kDrop);
  desk.hang_up(ids[0]);
  desk.hang_up(ids[1]);
  CHECK(desk.job_count() == 1);
  desk.pass(31 * kSecond, {});
  CHECK(desk.job_count() == 0);
  CHECK(desk.registry().memory_taken_bytes() == 0);
}

TEST_CASE("how old what workers read was is summed over ranks, as they last said it") {
  Desk desk;
  const auto ids = start(desk, SyncModel::kSsp);
  const auto seen = [&] {
    return desk.registry().views(desk.now_ns()).at(0).reads_by_rounds_behind;
  };
  CHECK(seen().empty());
  desk.say(ids[0], heartbeat({5, 2}));
  desk.say(ids[1], heartbeat({1, 0, 7}));
  CHECK(seen() == std::vector<uint64_t>{6, 2, 7});
  desk.say(ids[0], heartbeat({8, 2}));
  CHECK(seen() == std::vector<uint64_t>{9, 2, 7});
  desk.say(ids[0], heartbeat(std::vector<uint64_t>(1000, 1)));
  CHECK(seen().size() == wire::kStalenessMax + 2);
}

TEST_CASE("a policy that goes on without lost ranks frees those who waited for one") {
  Desk desk({.lost_timeout_ns = 3 * kSecond});
  const auto ids = start(desk, SyncModel::kSsp, LostPolicy::kPartial);
  desk.take(ids[0]);
  desk.hang_up(ids[1]);
  desk.pass(2 * kSecond, {ids[0]});
  CHECK(desk.job_count() == 1);
  desk.pass(2 * kSecond, {ids[0]});
  CHECK(desk.registry().totals().workers_excluded == 1);
  CHECK_FALSE(desk.host().shards(0)[0]->sessions()[1].present);
}

namespace {

// The models of the job's two tensors on the pipelines. The second tensor is the last chunk.
std::vector<std::string> in_force(Desk& desk) {
  std::vector<std::string> models(2);
  uint32_t last = 0;
  for (const uint32_t pipeline : {0u, 1u}) {
    for (const auto& chunk : desk.host().shards(pipeline)[0]->chunks()) {
      last = std::max(last, chunk.id);
    }
  }
  for (const uint32_t pipeline : {0u, 1u}) {
    for (const auto& chunk : desk.host().shards(pipeline)[0]->chunks()) {
      const std::string text = wire::sync_text(chunk.sync->spec);
      std::string& model = models[chunk.id == last ? 1 : 0];
      CHECK((model.empty() || model == text));
      model = text;
    }
  }
  return models;
}

SyncChange change_of(const char* tensors, const char* model) {
  return {tensors, *wire::parse_sync_text(model)};
}

proto::WorkerMessage set_sync(uint64_t sequence, const char* tensors, const char* model) {
  proto::WorkerMessage message;
  message.mutable_set_sync()->set_sequence(sequence);
  message.mutable_set_sync()->set_tensors(tensors);
  *message.mutable_set_sync()->mutable_sync() = wire::sync_message(*wire::parse_sync_text(model));
  return message;
}

}  // namespace

TEST_CASE("the operator changes the models of a running job, by the names of its tensors") {
  Desk desk;
  const auto ids = start(desk, SyncModel::kAsp);
  const std::string second = join_message("job", 0, 2).join().tensors(1).name();
  REQUIRE(desk.registry().requests().set_sync("job", change_of(second.c_str(), "ssp:2")));
  CHECK(in_force(desk) == std::vector<std::string>{"asp", "ssp:2"});
  JobView view = desk.registry().views(desk.now_ns()).at(0);
  CHECK(view.sync.text == "asp");
  CHECK(view.sync.by_tensor == std::map<std::string, std::string>{{second, "ssp:2"}});
  REQUIRE(desk.registry().requests().set_sync("job", change_of("", "pssp:1:0.5:lazy")));
  CHECK(in_force(desk) == std::vector<std::string>(2, "pssp:1:0.5:lazy"));
  view = desk.registry().views(desk.now_ns()).at(0);
  CHECK(view.sync.text == "pssp:1:0.5:lazy");
  CHECK(view.sync.model == "pssp");
  CHECK(view.sync.by_tensor.empty());
  CHECK_FALSE(desk.is_closed(ids[0]));
}

TEST_CASE("an operator's change that is not possible is refused in words, and changes nothing") {
  Desk desk;
  start(desk, SyncModel::kAsp);
  const auto refused = [&](const char* job, const char* tensors, const char* model) {
    const Status set = desk.registry().requests().set_sync(job, change_of(tensors, model));
    REQUIRE_FALSE(set);
    return set.error();
  };
  CHECK(refused("jib", "", "asp").code == ErrorCode::kNotFound);
  CHECK_THAT(refused("job", "nothing.*", "asp").message, Contains("no tensor 'nothing.*'"));
  CHECK_THAT(refused("job", "", "bsp").message, Contains("cannot become bsp"));
  CHECK(in_force(desk) == std::vector<std::string>(2, "asp"));
  auto gathering = join_with(0, SyncModel::kAsp, LostPolicy::kWait);
  gathering.mutable_join()->set_job("late");
  desk.join(gathering);
  CHECK(refused("late", "", "ssp:1").code == ErrorCode::kUnavailable);
}

TEST_CASE("a rank changes models, and is told that they are in force, or why they are not") {
  Desk desk;
  const auto ids = start(desk, SyncModel::kAsp);
  for (const ConnectionId id : ids) desk.take(id);
  desk.say(ids[1], set_sync(1, "", "ssp:3"));
  CHECK(in_force(desk) == std::vector<std::string>(2, "ssp:3"));
  auto answers = desk.take(ids[1]);
  REQUIRE(answers.size() == 1);
  CHECK(answers[0].sync_set().sequence() == 1);
  CHECK(answers[0].sync_set().refusal().empty());
  CHECK(desk.take(ids[0]).empty());
  desk.say(ids[1], set_sync(2, "", "drop:1"));
  answers = desk.take(ids[1]);
  REQUIRE(answers.size() == 1);
  CHECK(answers[0].sync_set().sequence() == 2);
  CHECK_THAT(answers[0].sync_set().refusal(), Contains("cannot become drop:1"));
  CHECK(in_force(desk) == std::vector<std::string>(2, "ssp:3"));
  CHECK_FALSE(desk.is_closed(ids[1]));
}

}  // namespace pbox::control::job_registry_sync_test
