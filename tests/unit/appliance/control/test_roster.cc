// The members of a job: completeness, majorities, and barriers after the loss of a box.
#include <catch2/catch.hpp>

#include "appliance/control/roster.h"

namespace pbox::control::roster_test {
namespace {

Roster joined(uint32_t world_size) {
  Roster roster(world_size);
  for (Member& member : roster) member.state = Member::State::kJoined;
  return roster;
}

// Makes `member` one that resumes and has stated its rounds.
void resume(Member& member, uint32_t epoch, uint64_t asked = 0, uint64_t passed = 0) {
  member.state = Member::State::kJoined;
  member.resumes = member.stated = true;
  member.epoch = epoch;
  member.barrier_sequence = asked;
  member.barriers_released = passed;
}

}  // namespace

TEST_CASE("a roster is complete once all ranks are ready") {
  Roster roster(2);
  CHECK_FALSE(roster.complete());
  roster[0].state = Member::State::kJoined;
  CHECK_FALSE(roster.complete());
  roster[1].state = Member::State::kJoined;
  CHECK(roster.complete());
  roster[1].resumes = true;  // and has yet to state its rounds
  CHECK_FALSE(roster.complete());
  roster[1].stated = true;
  CHECK(roster.complete());
}

TEST_CASE("a rank that the newest generation went on without is not waited for") {
  Roster roster(3);
  resume(roster[0], 7);
  resume(roster[1], 7);
  roster[1].generation = 2;
  roster[1].absent = {2};
  CHECK(roster.left_behind(2, {7, 1}));
  CHECK_FALSE(roster.left_behind(2, {7, 2}));
  CHECK(roster.complete());
}

TEST_CASE("the half with the lowest rank is a majority, and the other half is not") {
  Roster roster = joined(4);
  roster[2].state = roster[3].state = Member::State::kLost;
  CHECK(roster.has_majority());
  roster = joined(4);
  roster[0].state = roster[1].state = Member::State::kLost;
  CHECK_FALSE(roster.has_majority());
  roster[1].state = Member::State::kExcluded;  // three are left, of which two are here
  CHECK(roster.has_majority());
}

TEST_CASE("after the loss of a box the barrier is the last that all have asked for") {
  Roster roster(2);
  resume(roster[0], 7, 5, 4);
  resume(roster[1], 7, 4, 4);
  CHECK(roster.barrier_to_resume() == 4);
  roster[1] = {};
  roster[1].state = Member::State::kJoined;  // a new process, which has asked for none
  roster[0].barriers_released = 3;
  CHECK(roster.barrier_to_resume() == 3);
}

TEST_CASE("ranks that have left or are excluded hold no barrier up") {
  Roster roster = joined(3);
  roster[0].barrier_sequence = 6;
  roster[1].state = Member::State::kLeft;
  roster[2].state = Member::State::kExcluded;
  CHECK(roster.barrier_reached() == 6);
  roster[0].state = Member::State::kLeft;
  CHECK(roster.barrier_reached() == UINT64_MAX);
}

TEST_CASE("the newest session and the newest learning rate are those that count") {
  Roster roster = joined(2);
  CHECK(roster.newest_resuming() == nullptr);
  CHECK_FALSE(roster.newest_learning_rate());
  resume(roster[0], 7);
  resume(roster[1], 9);
  CHECK(roster.newest_resuming() == &roster[1]);
  CHECK(roster.newest_epoch() == 9);
  roster[0].learning_rates_set = 2;
  roster[0].learning_rate = 0.25f;
  roster[1].learning_rates_set = 1;
  CHECK(roster.newest_learning_rate() == 0.25f);
}

TEST_CASE("the learning rate of the lowest rank still in the job counts, if it has set one") {
  Roster roster = joined(4);
  CHECK_FALSE(roster.learning_rate_setter());
  for (const uint32_t rank : {1u, 2u, 3u}) roster[rank].learning_rates_set = 1;
  CHECK(roster.learning_rate_setter() == 1u);
  roster[1].state = Member::State::kLost;  // it may come back
  CHECK(roster.learning_rate_setter() == 1u);
  roster[1].state = Member::State::kExcluded;
  CHECK(roster.learning_rate_setter() == 2u);
  roster[2].state = Member::State::kLeft;
  CHECK(roster.learning_rate_setter() == 3u);
}

TEST_CASE("ranks are listed for people") {
  Roster roster = joined(12);
  CHECK(roster.ranks_in(Member::State::kJoined) == "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 4 more");
  roster[5].state = Member::State::kLost;
  CHECK(roster.ranks_in(Member::State::kLost) == "rank 5");
}

}  // namespace pbox::control::roster_test
