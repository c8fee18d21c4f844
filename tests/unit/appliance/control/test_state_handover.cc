// The state of a part on its way from box to box: who keeps it, who is asked, and for how long.
#include <catch2/catch.hpp>

#include "tests/unit/appliance/control/registry_bench.h"

namespace pbox::control::state_handover_test {
namespace {

constexpr uint32_t kEpoch = 7;
constexpr uint32_t kRounds = 5;
const JobKey kPart{"train", 0};

// A state of the job after kRounds rounds.
PartState state_of(const Job& job) {
  PartState state;
  state.epoch = kEpoch;
  const auto counts = state_value_counts(job.spec());
  for (uint32_t chunk = 0; chunk < counts.size(); ++chunk) {
    pipeline::ChunkState& one = state.chunks.emplace_back();
    one.chunk = chunk;
    one.rounds_finished = kRounds;
    one.values.assign(counts[chunk], static_cast<float>(chunk));
  }
  return state;
}

struct Handover : Bench {
  StateHandover handover{context, parts, owner};
  Job& job = add(join_optimizing(0));

  MovableParts::BoxQuestion take_question() {
    REQUIRE_FALSE(parts.box_questions.empty());
    auto question = parts.box_questions.front();
    parts.box_questions.erase(parts.box_questions.begin());
    return question;
  }
};

proto::AskState question_of(uint32_t epoch) {
  proto::AskState question;
  question.set_job(kPart.first);
  question.set_part(kPart.second);
  question.set_epoch(epoch);
  return question;
}

}  // namespace

TEST_CASE("a part without resuming ranks waits for no state") {
  Handover here;
  CHECK(here.handover.fetch(here.job));
  CHECK(here.parts.box_questions.empty());
  CHECK(here.handover.state_for(here.job) == nullptr);
}

TEST_CASE("a state is fetched from the box of the newest session, and the part is advanced once") {
  Handover former, here;
  former.handover.keep(former.job, state_of(former.job), false, {});
  Bench::resume(here.job, "former", kEpoch, kRounds);
  CHECK_FALSE(here.handover.fetch(here.job));
  CHECK_FALSE(here.handover.fetch(here.job));  // it is under way, and not asked for twice
  CHECK(here.parts.box_questions.size() == 1);
  while (!here.parts.box_questions.empty()) {
    const auto question = here.take_question();
    CHECK(question.box == "former");
    CHECK(here.owner.advanced.empty());
    question.done(former.handover.answer(question.question.ask_state()));
  }
  CHECK(here.owner.advanced == std::vector<JobKey>{kPart});
  CHECK(here.handover.fetch(here.job));
  const PartState* state = here.handover.state_for(here.job);
  REQUIRE(state != nullptr);
  CHECK(state->epoch == kEpoch);
  CHECK(state->chunks.size() == 4);
  CHECK(state->bytes() == former.handover.bytes_of({}));
}

TEST_CASE("an answer within the question is recorded, and the caller goes on with it") {
  Handover here;
  here.parts.knows_boxes = false;  // such a question fails at once
  Bench::resume(here.job, "unknown", kEpoch, kRounds);
  CHECK(here.handover.fetch(here.job));
  CHECK(here.owner.advanced.empty());
  CHECK(here.noted("part_state_lost"));
  CHECK(here.handover.state_for(here.job) == nullptr);
}

TEST_CASE("the backup box is asked after 2 s, and has longer to answer, as there is no other") {
  Handover here;
  Bench::resume(here.job, "former", kEpoch, kRounds);
  for (Member& member : here.job.members()) member.copy = {"backup", "train#0~1"};
  CHECK_FALSE(here.handover.fetch(here.job));
  const auto late = here.take_question();
  here.pass(2 * kSecond - 1);
  CHECK(here.handover.check_deadline(here.job) == StateHandover::Transfer::kUnderWay);
  CHECK(here.parts.box_questions.empty());
  here.pass(1);
  CHECK(here.handover.check_deadline(here.job) == StateHandover::Transfer::kUnderWay);
  const auto asked = here.take_question();
  CHECK(asked.box == "backup");
  CHECK(asked.question.ask_state().job() == "train#0~1");
  CHECK(asked.question.ask_state().is_backup());
  late.done(Error{ErrorCode::kNotFound, "too late"});  // is ignored
  CHECK(here.owner.advanced.empty());
  here.pass(8 * kSecond - 1);
  CHECK(here.handover.check_deadline(here.job) == StateHandover::Transfer::kUnderWay);
  here.pass(1);
  CHECK(here.handover.check_deadline(here.job) == StateHandover::Transfer::kOver);
  CHECK(here.noted("part_copy_asked_for"));
  CHECK(here.noted("part_state_lost"));
}

TEST_CASE("a state is kept until it is acknowledged, and only for its epoch") {
  Handover here;
  here.handover.keep(here.job, state_of(here.job), false, {"backup", "train#0~1"});
  CHECK(here.handover.states_kept() == 1);
  CHECK(here.handover.answer(question_of(kEpoch + 1)).error().code == ErrorCode::kNotFound);
  CHECK(here.handover.answer(question_of(kEpoch)).ok());
  CHECK(here.handover.keeps(kPart));
  auto taken = question_of(kEpoch);
  taken.set_taken(true);
  CHECK(here.handover.answer(taken).ok());
  CHECK(here.handover.states_kept() == 0);
  CHECK(here.take_question().box == "backup");  // the copy is not needed any more
}

TEST_CASE("a state that no box asks for is dropped, and each question prolongs its time") {
  Handover here;
  here.handover.keep(here.job, state_of(here.job), false, {});
  const uint64_t kept_ns = 2 * (10 * kSecond + here.context.options.dead_after_ns);
  here.pass(kept_ns - 1);
  CHECK(here.handover.answer(question_of(kEpoch)).ok());
  here.pass(kept_ns - 1);
  here.handover.drop_expired();
  CHECK(here.handover.states_kept() == 1);
  here.pass(1);
  here.handover.drop_expired();
  CHECK(here.handover.states_kept() == 0);
  CHECK(here.noted("part_state_dropped"));
}

TEST_CASE("a backup copy is no state that the box has to stay for") {
  Handover here;
  here.handover.keep(here.job, state_of(here.job), true, {});
  CHECK(here.handover.states_kept() == 0);
  CHECK(here.handover.kept_bytes(kPart) > 0);
  auto question = question_of(kEpoch + 3);  // the box that asks knows the epoch
  CHECK(here.handover.answer(question).error().code == ErrorCode::kNotFound);
  question.set_is_backup(true);
  CHECK(here.handover.answer(question).ok());
}

TEST_CASE("the previous owner is released once") {
  Handover here;
  Bench::resume(here.job, "former", kEpoch, kRounds);
  CHECK_FALSE(here.handover.fetch(here.job));
  here.take_question();
  here.handover.begin_opening(here.job, state_of(here.job));
  here.handover.on_opened(kPart);
  CHECK(here.parts.box_questions.empty());
  here.handover.release_previous_owner(here.job);
  const auto told = here.take_question();
  CHECK(told.box == "former");
  CHECK(told.question.ask_state().taken());
  CHECK(told.question.ask_state().epoch() == kEpoch);
  here.handover.release_previous_owner(here.job);
  CHECK(here.parts.box_questions.empty());
}

TEST_CASE("a part that comes back to its box goes on from the state that the box has kept") {
  Handover here;
  Bench::resume(here.job, "here", kEpoch, kRounds);
  here.handover.keep(here.job, state_of(here.job), false, {});
  CHECK(here.handover.fetch(here.job));
  CHECK(here.parts.box_questions.empty());
  const PartState* state = here.handover.state_for(here.job);
  REQUIRE(state != nullptr);
  here.handover.begin_opening(here.job, *state);
  here.handover.release_previous_owner(here.job);
  CHECK_FALSE(here.handover.keeps(kPart));
  CHECK(here.parts.box_questions.empty());
}

TEST_CASE("a state of other rounds than the ranks are in is not used") {
  Handover here;
  Bench::resume(here.job, "here", kEpoch, kRounds + 2);
  here.handover.keep(here.job, state_of(here.job), false, {});
  CHECK(here.handover.state_for(here.job) == nullptr);
  CHECK(here.noted("part_state_misfit"));
}

TEST_CASE("the time in which the box stood still does not count for states and answers") {
  Handover here;
  Bench::resume(here.job, "former", kEpoch, kRounds);
  REQUIRE_FALSE(here.handover.fetch(here.job));
  here.handover.keep(here.job, state_of(here.job), false, {});
  const uint64_t gap_ns = 100 * kSecond;
  here.pass(gap_ns);
  here.handover.forgive(gap_ns);
  here.handover.drop_expired();
  CHECK(here.handover.keeps(kPart));
  CHECK(here.handover.check_deadline(here.job) == StateHandover::Transfer::kUnderWay);
  here.pass(gap_ns);
  here.handover.drop_expired();
  CHECK_FALSE(here.handover.keeps(kPart));
  CHECK(here.handover.check_deadline(here.job) == StateHandover::Transfer::kOver);
}

}  // namespace pbox::control::state_handover_test
