// Peers that take more of the box's time or connections than a worker needs.
#include <catch2/catch.hpp>

#include "tests/unit/appliance/control/registry_desk.h"

namespace pbox::control {

using Catch::Contains;

TEST_CASE("a connection that asks questions again and again, and never joins, is closed too") {
  Desk desk({.hello_timeout_ns = 2 * kSecond});
  const ConnectionId id = desk.open();
  proto::WorkerMessage question;
  question.mutable_ask_data_addresses();
  for (uint32_t second = 0; second < 12; ++second) {
    desk.say(id, question);
    desk.pass(kSecond);
  }
  REQUIRE_FALSE(desk.is_closed(id));
  desk.take(id);
  desk.pass(kSecond);
  CHECK(desk.is_closed(id));
  CHECK_THAT(desk.take_failure(id).message(), Contains("no JOIN within 12"));
}

TEST_CASE("a worker that names ranks that cannot be absent costs no more than the job's ranks") {
  Desk desk;
  auto message = join_message("job", 1, 3);
  proto::Join& join = *message.mutable_join();
  join.set_resumes(true);
  join.set_epoch(1);
  join.set_generation(2);
  join.set_incarnation(1001);
  for (uint32_t rank = 0; rank < 100'000; ++rank) join.add_absent_ranks(rank % 2 == 0 ? 2 : 77);
  const ConnectionId id = desk.join(message);
  CHECK_FALSE(desk.is_closed(id));
  CHECK(desk.job_count() == 1);
  // Rank 2 is absent, so the two others are the whole job.
  auto first = join_message("job", 0, 3);
  first.mutable_join()->set_resumes(true);
  first.mutable_join()->set_epoch(1);
  first.mutable_join()->set_generation(2);
  first.mutable_join()->set_incarnation(1000);
  first.mutable_join()->add_absent_ranks(2);
  const ConnectionId zero = desk.join(first);
  proto::WorkerMessage rounds;
  rounds.mutable_rounds()->mutable_rounds()->Add(1);
  for (int more = 0; more < 3; ++more) rounds.mutable_rounds()->add_rounds(1);
  rounds.mutable_rounds()->set_last(true);
  desk.say(zero, rounds);
  desk.say(id, rounds);
  CHECK(desk.take(zero).at(0).has_session());
}

}  // namespace pbox::control
