// Verdicts on rounds: who decides, who must hold them, and what comes back after a loss.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "appliance/control/step_verdicts.h"
#include "nic/wire/control_frame.h"
#include "tests/unit/appliance/control/registry_desk.h"

namespace pbox::control::step_verdicts_test {
namespace {

using Catch::Contains;

proto::WorkerMessage join_clipped(uint32_t rank, uint32_t part = 0, uint32_t parts = 1) {
  auto message = join_optimizing(rank);
  proto::Join& join = *message.mutable_join();
  join.mutable_optimizer()->set_max_grad_norm(1);
  join.mutable_optimizer()->set_skip_nonfinite(true);
  join.set_part(part);
  join.set_parts(parts);
  for (uint32_t each = 0; each < parts; ++each) join.add_filled_parts(each);
  return message;
}

proto::WorkerMessage held(const proto::StepVerdict& verdict, float loss_scale = 1,
                          uint64_t age = 0) {
  proto::WorkerMessage message;
  *message.mutable_step_verdict() = verdict;
  message.mutable_step_verdict()->set_loss_scale(loss_scale);
  message.mutable_step_verdict()->set_scale_age(age);
  return message;
}

std::vector<ConnectionId> start(Desk& desk, uint32_t part = 0, uint32_t parts = 1) {
  std::vector<ConnectionId> ids;
  for (const uint32_t rank : {0u, 1u}) ids.push_back(desk.join(join_clipped(rank, part, parts)));
  for (const ConnectionId id : ids) {
    const auto messages = desk.take(id);
    REQUIRE(messages.size() == 1);
    CHECK(messages[0].session().gives_verdicts());
  }
  return ids;
}

std::vector<pipeline::JobShard*> shards_of(Desk& desk) {
  std::vector<pipeline::JobShard*> shards;
  for (const uint32_t pipeline : {0u, 1u}) {
    for (pipeline::JobShard* shard : desk.host().shards(pipeline)) shards.push_back(shard);
  }
  return shards;
}

// Has every shard report these squares.
void report(Desk& desk, uint32_t round, double squares) {
  for (pipeline::JobShard* shard : shards_of(desk)) shard->gate->report({round, squares});
  desk.registry().on_tick(desk.now_ns());
  desk.deliver();
}

// Returns the rank's only message, which must be a verdict.
proto::StepVerdict told(Desk& desk, ConnectionId id) {
  const auto messages = desk.take(id);
  REQUIRE(messages.size() == 1);
  REQUIRE(messages[0].has_step_verdict());
  return messages[0].step_verdict();
}

bool is_given(Desk& desk, uint32_t round) {
  const auto shards = shards_of(desk);
  REQUIRE_FALSE(shards.empty());
  return std::all_of(shards.begin(), shards.end(),
                     [&](const auto* shard) { return shard->gate->has_verdict(round); });
}

proto::WorkerMessage resume(proto::WorkerMessage message, uint32_t epoch,
                            const proto::StepVerdict& verdict) {
  message.mutable_join()->set_resumes(true);
  message.mutable_join()->set_epoch(epoch);
  message.mutable_join()->set_generation(1);
  if (verdict.round() > 0) *message.mutable_join()->mutable_verdict() = verdict;
  return message;
}

proto::WorkerMessage rounds_message(const std::vector<uint32_t>& rounds) {
  proto::WorkerMessage message;
  message.mutable_rounds()->mutable_rounds()->Add(rounds.begin(), rounds.end());
  message.mutable_rounds()->set_last(true);
  return message;
}

std::string only_event(Desk& desk, const std::string& name) {
  std::string text;
  for (const auto& event : desk.registry().take_events()) {
    if (event.name == name) text = event.text;
  }
  return text;
}

}  // namespace

TEST_CASE("the factor clips as torch does, after the loss scale is undone") {
  CHECK(step_factor(2, 1, 0) == 1);
  CHECK(step_factor(2, 4, 0) == 0.25f);
  CHECK(step_factor(0.5, 1, 1) == 1);
  CHECK(step_factor(8, 1, 2) == Approx(0.25));
  CHECK(step_factor(8 * 1024.0, 1024, 2) == Approx(0.25 / 1024));
  CHECK(std::isnan(step_factor(NAN, 1, 1)));
  CHECK(step_factor(INFINITY, 1, 1) == 0);
}

TEST_CASE("a round is stepped once every shard has reported it and every rank holds the verdict") {
  Desk desk;
  const auto ids = start(desk);
  REQUIRE(shards_of(desk).size() == 2);
  shards_of(desk)[0]->gate->report({1, 9});
  desk.registry().on_tick(desk.now_ns());
  desk.deliver();
  CHECK(desk.take(ids[0]).empty());
  report(desk, 1, 8);
  const proto::StepVerdict verdict = told(desk, ids[0]);
  CHECK(verdict.round() == 1);
  CHECK(verdict.norm() == 4);
  CHECK_FALSE(verdict.skipped());
  CHECK(told(desk, ids[1]).SerializeAsString() == verdict.SerializeAsString());
  CHECK_FALSE(is_given(desk, 1));
  desk.say(ids[1], held(verdict));
  CHECK_FALSE(is_given(desk, 1));
  desk.say(ids[0], held(verdict));
  REQUIRE(is_given(desk, 1));
  CHECK(shards_of(desk)[0]->gate->verdict().factor == Approx(0.25));
  CHECK(desk.take(ids[0]).empty());
}

TEST_CASE("a round that is not finite is skipped for all ranks, and logged") {
  Desk desk;
  const auto ids = start(desk);
  report(desk, 1, std::numeric_limits<double>::infinity());
  for (const ConnectionId id : ids) {
    const proto::StepVerdict verdict = told(desk, id);
    CHECK(verdict.skipped());
    desk.say(id, held(verdict));
  }
  REQUIRE(is_given(desk, 1));
  CHECK(shards_of(desk)[1]->gate->verdict().is_skip);
  CHECK_THAT(only_event(desk, "step_skipped"), Contains("round 1 is skipped"));
}

TEST_CASE("the loss scale that the ranks confirm with is undone") {
  Desk desk;
  const auto ids = start(desk);
  report(desk, 1, 0.5 * 1024 * 1024);
  for (const ConnectionId id : ids) desk.say(id, held(told(desk, id), 4096));
  REQUIRE(is_given(desk, 1));
  CHECK(shards_of(desk)[0]->gate->verdict().factor == 1.0f / 4096);
}

TEST_CASE("ranks with different loss scales end the job in words") {
  Desk desk;
  const auto ids = start(desk);
  report(desk, 1, 1);
  desk.say(ids[0], held(told(desk, ids[0]), 1024));
  desk.say(ids[1], held(told(desk, ids[1]), 512));
  CHECK_THAT(desk.take_failure(ids[0]).message(),
             Contains("rank 1 has the loss scale 512") && Contains("others have 1024"));
  CHECK(desk.job_count() == 0);
}

TEST_CASE("a rank that is lost is waited for, since it may still take up results") {
  Desk desk;
  const auto ids = start(desk);
  report(desk, 1, 1);
  const proto::StepVerdict verdict = told(desk, ids[0]);
  desk.hang_up(ids[1]);
  desk.say(ids[0], held(verdict));
  desk.pass(kSecond, {ids[0]});
  CHECK_FALSE(is_given(desk, 1));
  auto rejoin = join_clipped(1);
  rejoin.mutable_join()->set_rejoins(true);
  rejoin.mutable_join()->set_incarnation(77);
  const ConnectionId again = desk.join(rejoin);
  const auto messages = desk.take(again);
  REQUIRE(messages.size() == 3);  // the verdict that waits, SESSION, rounds
  REQUIRE(messages[0].has_step_verdict());
  desk.say(again, held(messages[0].step_verdict(), 0));
  CHECK(is_given(desk, 1));
  // The newcomer did not know the loss scale, and is told.
  CHECK(told(desk, again).loss_scale() == 1);
}

TEST_CASE("a process that takes a lost rank's place is told the last verdict and its loss scale") {
  Desk desk;
  const auto ids = start(desk);
  report(desk, 1, 1);
  for (const ConnectionId id : ids) desk.say(id, held(told(desk, id), 2048, 17));
  desk.hang_up(ids[1]);
  auto rejoin = join_clipped(1);
  rejoin.mutable_join()->set_rejoins(true);
  rejoin.mutable_join()->set_incarnation(77);
  const auto messages = desk.take(desk.join(rejoin));
  REQUIRE(messages.size() == 3);
  CHECK(messages[0].step_verdict().loss_scale() == 2048);
  CHECK(messages[0].step_verdict().scale_age() == 17);
}

TEST_CASE("a rank that is excluded is not waited for") {
  Desk desk;
  std::vector<ConnectionId> ids;
  for (const uint32_t rank : {0u, 1u}) {
    auto message = join_clipped(rank);
    message.mutable_join()->set_on_worker_lost(1);
    message.mutable_join()->set_lost_timeout_ms(1000);
    ids.push_back(desk.join(message));
  }
  for (const ConnectionId id : ids) desk.take(id);
  report(desk, 1, 1);
  desk.say(ids[0], held(told(desk, ids[0])));
  desk.hang_up(ids[1]);
  desk.pass(900 * kMilli, {ids[0]});
  CHECK_FALSE(is_given(desk, 1));
  desk.pass(400 * kMilli, {ids[0]});
  CHECK(is_given(desk, 1));
}

TEST_CASE("after the loss of a box the verdict that a rank brings along counts again") {
  Desk desk;
  std::vector<ConnectionId> ids = start(desk);
  report(desk, 3, 8);
  const proto::StepVerdict verdict = told(desk, ids[0]);
  desk.say(ids[0], held(verdict, 4));
  desk.crash();
  // Only rank 0 had received the verdict. The sums that are made again differ.
  proto::StepVerdict of_rank = verdict;
  of_rank.set_loss_scale(4);
  ids = {desk.join(resume(join_clipped(0), 1, of_rank)), desk.join(resume(join_clipped(1), 1, {}))};
  for (const ConnectionId id : ids) desk.say(id, rounds_message({3, 3, 3, 3}));
  std::vector<proto::StepVerdict> again;
  for (const ConnectionId id : ids) {
    const auto messages = desk.take(id);
    REQUIRE(messages.size() == 3);
    REQUIRE(messages[0].has_step_verdict());
    again.push_back(messages[0].step_verdict());
    CHECK(again.back().round() == 3);
    CHECK(again.back().norm() == verdict.norm());
    CHECK(again.back().epoch() > verdict.epoch());
  }
  CHECK_FALSE(is_given(desk, 3));
  report(desk, 3, INFINITY);
  for (const ConnectionId id : ids) CHECK(desk.take(id).empty());
  desk.say(ids[0], held(again[0], 4));
  desk.say(ids[1], held(again[1], 4));
  REQUIRE(is_given(desk, 3));
  CHECK_FALSE(shards_of(desk)[0]->gate->verdict().is_skip);
}

TEST_CASE("a part reports to the box of the deciding part, in the epoch that this box is in") {
  Desk desk;
  desk.parts.knows_boxes = true;
  desk.parts.moved[{"train", 0}].set_box("other");
  const auto ids = start(desk, 1, 2);
  REQUIRE(shards_of(desk).size() == 1);
  report(desk, 1, 25);
  auto& questions = desk.parts.box_questions;
  const auto answer = [&](uint32_t epoch) {
    proto::BoxMessage message;
    message.mutable_step_taken()->set_epoch(epoch);
    const auto done = std::move(questions.back().done);
    questions.pop_back();
    done(message);
    desk.deliver();
  };
  REQUIRE(questions.size() == 1);
  CHECK(questions[0].box == "other");
  CHECK(questions[0].question.ask_step().epoch() == 0);
  answer(7);
  REQUIRE(questions.size() == 1);
  const proto::AskStep asked = questions[0].question.ask_step();
  CHECK(asked.epoch() == 7);
  CHECK(asked.round() == 1);
  CHECK(asked.squares() == 25);
  CHECK(asked.part() == 1);
  answer(7);
  CHECK(questions.empty());
  desk.pass(900 * kMilli, ids);
  CHECK(questions.empty());
  desk.pass(300 * kMilli, ids);
  REQUIRE(questions.size() == 1);  // the box may have been lost meanwhile
  answer(7);

  // The ranks bring the verdict. One of an earlier epoch comes too late to count.
  proto::StepVerdict verdict;
  verdict.set_round(1);
  verdict.set_epoch(6);
  verdict.set_norm(13);
  desk.say(ids[0], held(verdict));
  CHECK(desk.take(ids[1]).empty());
  verdict.set_epoch(7);
  desk.say(ids[0], held(verdict));
  CHECK(told(desk, ids[1]).norm() == 13);
  CHECK_FALSE(is_given(desk, 1));
  desk.say(ids[1], held(verdict));
  CHECK(is_given(desk, 1));
  desk.pass(2 * kSecond, ids);
  CHECK(questions.empty());
}

TEST_CASE("the deciding part adds the reports of all parts that have chunks") {
  Desk desk;
  const auto ids = start(desk, 0, 2);
  std::vector<ConnectionId> connections;
  const auto ask = [&](uint32_t part, uint32_t epoch, double squares) {
    proto::WorkerMessage message;
    proto::AskStep& question = *message.mutable_ask_step();
    question.set_protocol_version(wire::kControlProtocolVersion);
    question.set_job("train");
    question.set_part(part);
    question.set_epoch(epoch);
    question.set_round(1);
    question.set_squares(squares);
    const ConnectionId id = desk.join(message);
    const auto messages = desk.take(id);
    REQUIRE(messages.size() == 1);
    return messages[0];
  };
  const uint32_t epoch = ask(1, 0, 1e6).step_taken().epoch();
  CHECK(epoch > 0);
  report(desk, 1, 9);
  CHECK(desk.take(ids[0]).empty());  // the report named another epoch
  ask(7, epoch, 1e6);                // there is no such part
  CHECK(desk.take(ids[0]).empty());
  ask(1, epoch, 16);
  CHECK(told(desk, ids[0]).norm() == 5);
  desk.crash();
  CHECK_THAT(ask(1, epoch, 16).failure().message(), Contains("does not run"));
}

TEST_CASE("combinations without a whole gradient on the box are refused in words") {
  const auto refusal = [](auto change) {
    Desk desk;
    auto message = join_clipped(0);
    change(*message.mutable_join());
    return desk.take_failure(desk.join(message)).message();
  };
  using proto::Join;
  CHECK_THAT(refusal([](Join& join) { join.mutable_optimizer()->set_max_grad_norm(-1); }),
             Contains("optimizer.max_grad_norm = -1 is out of range"));
  CHECK_THAT(refusal([](Join& join) { join.mutable_optimizer()->set_max_grad_norm(NAN); }),
             Contains("must be finite"));
  CHECK_THAT(refusal([](Join& join) { join.set_mode(0); }),
             Contains("max_grad_norm 1 needs mode optimize"));
  for (const uint32_t model : {1u, 2u, 3u, 4u, 5u, 6u}) {
    CHECK_THAT(refusal([&](Join& join) {
                 join.set_recovery(1);
                 join.mutable_sync()->set_model(model);
                 join.mutable_sync()->set_staleness(model == 1 || model == 6 ? 0 : 1);
                 join.mutable_sync()->set_probability(model == 4 || model == 5 ? 0.5f : 0.0f);
                 join.mutable_sync()->set_quorum(model == 6 ? 1 : 0);
                 join.mutable_optimizer()->set_kind(1);
                 join.mutable_optimizer()->set_max_grad_norm(0);
               }),
               Contains("skip_nonfinite needs sync model bsp"));
  }
  CHECK_THAT(refusal([](Join& join) { join.add_filled_parts(1); }), Contains("filled_parts"));
}

TEST_CASE("ranks that ask for different clipping are refused") {
  Desk desk;
  desk.join(join_clipped(0));
  auto other = join_clipped(1);
  other.mutable_join()->mutable_optimizer()->set_max_grad_norm(2);
  CHECK_THAT(desk.take_failure(desk.join(other)).message(),
             Contains("optimizer.max_grad_norm: 2, but the job has 1"));
  other = join_clipped(1);
  other.mutable_join()->mutable_optimizer()->set_skip_nonfinite(false);
  CHECK_THAT(desk.take_failure(desk.join(other)).message(),
             Contains("optimizer.skip_nonfinite: 0, but the job has 1"));
}

TEST_CASE("a loss scale that is no number is refused") {
  Desk desk;
  const auto ids = start(desk);
  report(desk, 1, 1);
  const proto::StepVerdict verdict = told(desk, ids[0]);
  desk.say(ids[0], held(verdict, NAN));
  CHECK_THAT(desk.take_failure(ids[0]).message(), Contains("loss_scale"));
}

}  // namespace pbox::control::step_verdicts_test
