// Verdicts on rounds: a rank confirms each, keeps the newest, and brings it along after a loss.
#include <catch2/catch.hpp>

#include "tests/unit/worker/membership/member.h"
#include "worker/membership/held_verdict.h"

namespace pbox::test::membership_verdicts_test {
namespace {

using Catch::Contains;
using worker::Action;
using worker::HeldVerdict;

proto::StepVerdict verdict(uint32_t round, uint32_t epoch, double norm = 1, float loss_scale = 0,
                           uint64_t age = 0) {
  proto::StepVerdict verdict;
  verdict.set_round(round);
  verdict.set_epoch(epoch);
  verdict.set_norm(norm);
  verdict.set_loss_scale(loss_scale);
  verdict.set_scale_age(age);
  return verdict;
}

proto::BoxMessage told(const proto::StepVerdict& verdict) {
  proto::BoxMessage message;
  *message.mutable_step_verdict() = verdict;
  return message;
}

proto::Optimizer clipping() {
  proto::Optimizer optimizer;
  optimizer.set_kind(1);
  optimizer.set_max_grad_norm(1);
  return optimizer;
}

worker::MembershipOptions optimizing() {
  auto options = Member::default_options();
  options.optimize = true;
  return options;
}

proto::BoxMessage with_verdicts(proto::BoxMessage session) {
  session.mutable_session()->set_gives_verdicts(true);
  return session;
}

void join(Member& member) {
  member.ask_join();
  member.deliver(with_verdicts(Member::session()));
  member.act();
  member.membership.on_transport_open(Member::facts(), member.now_ns);
  REQUIRE(member.act().empty());
}

}  // namespace

TEST_CASE("a verdict takes the loss scale that was set before it came") {
  HeldVerdict held(false);
  CHECK(held.take(verdict(1, 5)));
  CHECK(held.held()->loss_scale() == 1);
  held.set_loss_scale(1024, 3);
  CHECK(held.held()->loss_scale() == 1);
  CHECK(held.take(verdict(2, 5)));
  CHECK(held.held()->loss_scale() == 1024);
  CHECK(held.held()->scale_age() == 3);
  held.set_loss_scale(512, 0);
  // A later owner has decided the same round again.
  CHECK(held.take(verdict(2, 6, 7)));
  CHECK(held.held()->norm() == 7);
  CHECK(held.held()->loss_scale() == 1024);
}

TEST_CASE("an older verdict, or one of an earlier owner, replaces none") {
  HeldVerdict held(false);
  CHECK(held.take(verdict(2, 6)));
  CHECK_FALSE(held.take(verdict(2, 6)));
  CHECK_FALSE(held.take(verdict(2, 5)));
  CHECK_FALSE(held.take(verdict(1, 9)));
  CHECK(held.take(verdict(3, 5)));
  CHECK(held.held()->round() == 3);
}

TEST_CASE("a process that takes a lost rank's place learns the loss scale from the box") {
  HeldVerdict held(true);
  CHECK(held.take(verdict(4, 5)));
  CHECK(held.held()->loss_scale() == 0);
  CHECK(held.take(verdict(4, 5, 1, 2048, 9)));
  CHECK(held.held()->loss_scale() == 2048);
  CHECK(held.held()->scale_age() == 9);
  held.set_loss_scale(4096, 0);
  CHECK(held.take(verdict(5, 5)));
  CHECK(held.held()->loss_scale() == 4096);
}

TEST_CASE("a rank confirms each verdict, and brings the newest along to another box") {
  Member member(optimizing(), clipping());
  join(member);
  member.deliver(told(verdict(1, 3, 2.5)));
  member.act();
  CHECK(member.message().step_verdict().norm() == 2.5);
  CHECK(member.message().step_verdict().loss_scale() == 1);
  member.lose_box();
  member.ask_join_again();
  REQUIRE(member.actions.size() == 2);
  const proto::Join& join = member.actions[0].message.join();
  CHECK(join.verdict().round() == 1);
  CHECK(join.verdict().epoch() == 3);
  auto session = with_verdicts(Member::session(4));
  session.mutable_session()->set_has_rounds(true);
  member.deliver(session);
  member.deliver(told(verdict(1, 4, 2.5)));  // before the transport is open
  member.deliver(Member::round_map({1, 1, 1}));
  member.act();
  member.membership.on_transport_open(Member::facts(), member.now_ns);
  member.act();
  REQUIRE_FALSE(member.actions.empty());
  CHECK(member.actions.back().message.step_verdict().epoch() == 4);
}

TEST_CASE("JOIN names the parts that have chunks only where rounds need verdicts") {
  Member plain;
  plain.ask_join();
  CHECK(plain.message().join().filled_parts_size() == 0);
  Member clipped(optimizing(), clipping());
  clipped.ask_join();
  CHECK(clipped.message().join().filled_parts_size() == 1);
}

TEST_CASE("a box that cannot clip is refused in words") {
  Member member(optimizing(), clipping());
  member.ask_join();
  member.deliver(Member::session());
  REQUIRE(member.membership.failure().has_value());
  CHECK(member.membership.failure()->code == ErrorCode::kVersionMismatch);
  CHECK_THAT(member.membership.failure()->message, Contains("max_grad_norm"));
}

TEST_CASE("a rank passes a verdict of one part on to the boxes of all parts") {
  auto options = optimizing();
  options.verdict = std::make_shared<HeldVerdict>(false);
  Member one(options, clipping()), other(options, clipping());
  join(one);
  join(other);
  one.deliver(told(verdict(1, 3, 6)));
  for (Member* member : {&one, &other}) {
    member->act();
    CHECK(member->message().step_verdict().norm() == 6);
    CHECK(member->act().empty());
  }
  // A box that sends an older verdict is sent the newer one.
  options.verdict->take(verdict(2, 3, 7));
  one.act();
  one.deliver(told(verdict(1, 4, 6)));
  one.act();
  CHECK(one.message().step_verdict().round() == 2);
}

}  // namespace pbox::test::membership_verdicts_test
