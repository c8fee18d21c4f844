// Reports of another box that ranks cannot reach this one: which ranks count, and how many suffice.
#include <catch2/catch.hpp>

#include "tests/unit/appliance/control/registry_desk.h"

namespace pbox::control::cut_off_test {
namespace {

constexpr char kJob[] = "job";

// Reports as another box that these ranks cannot reach this one. Returns whether this box agrees
// that most ranks are cut off.
bool report(Desk& desk, const std::vector<uint32_t>& ranks, const std::string& job = kJob) {
  const ConnectionId id = desk.open();
  proto::WorkerMessage message;
  proto::AskDataAddresses& question = *message.mutable_ask_data_addresses();
  question.set_cut_off_job(job);
  question.mutable_cut_off_ranks()->Add(ranks.begin(), ranks.end());
  desk.say(id, message);
  const auto answers = desk.take(id);
  REQUIRE(answers.size() == 1);
  REQUIRE(answers[0].has_data_addresses());
  desk.hang_up(id);
  return answers[0].data_addresses().most_are_cut_off();
}

}  // namespace

TEST_CASE("ranks that this box hears are not cut off, whatever they say") {
  Desk desk;
  const auto ranks = desk.start(kJob, 3);
  desk.pass(5 * kSecond, ranks);
  CHECK_FALSE(report(desk, {0, 1, 2}));
  desk.pass(10 * kSecond, ranks);
  CHECK_FALSE(report(desk, {0, 1, 2}));
}

TEST_CASE("more than half of the ranks must report, to whichever boxes, that they are cut off") {
  Desk desk;
  const auto ranks = desk.start(kJob, 4);
  for (const uint32_t rank : {1u, 2u, 3u}) desk.hang_up(ranks[rank]);
  CHECK_FALSE(report(desk, {1}));
  CHECK_FALSE(report(desk, {1, 0}));  // rank 0 lies
  CHECK_FALSE(report(desk, {2}));     // two of four
  CHECK_FALSE(report(desk, {2, 2, 4, 4'000'000'000}));
  CHECK(report(desk, {3}));
  CHECK(report(desk, {}));
}

TEST_CASE("a silent rank is cut off before its connection ends") {
  Desk desk;
  const auto ranks = desk.start(kJob, 2);
  CHECK_FALSE(report(desk, {0, 1}));
  desk.pass(3 * kSecond);
  REQUIRE_FALSE(desk.is_closed(ranks[0]));
  CHECK(report(desk, {}));
}

TEST_CASE("reports lose their force after a while, and when the rank is back") {
  Desk desk({.lost_timeout_ns = 100 * kSecond});
  auto ranks = desk.start(kJob, 3);
  for (const uint32_t rank : {1u, 2u}) desk.hang_up(ranks[rank]);
  CHECK(report(desk, {1, 2}));
  desk.pass(5 * kSecond, {ranks[0]});
  CHECK(report(desk, {1}));
  desk.pass(27 * kSecond, {ranks[0]});
  CHECK_FALSE(report(desk, {}));
  CHECK(report(desk, {1, 2}));
  auto back = join_message(kJob, 1, 3);
  back.mutable_join()->set_incarnation(7);
  back.mutable_join()->set_rejoins(true);
  desk.join(back);
  CHECK_FALSE(report(desk, {}));
}

TEST_CASE("a job that is not here may go on elsewhere") {
  Desk desk;
  CHECK(report(desk, {0}));
  desk.start(kJob, 2);
  CHECK(report(desk, {0}, "another"));
  CHECK_FALSE(report(desk, {0}));
}

}  // namespace pbox::control::cut_off_test
