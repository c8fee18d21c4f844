// A part of a job that moves, or whose box is lost while other boxes are reachable.
#include <catch2/catch.hpp>
#include <set>

#include "nic/wire/control_versions.h"
#include "tests/unit/worker/membership/member.h"

namespace pbox::test::membership_parts_test {
namespace {

using Catch::Contains;
using worker::Action;
using Phase = worker::Membership::Phase;
using Kinds = std::vector<Action::Kind>;

const Kinds kHangsUp = {Action::Kind::kDisconnect, Action::Kind::kCloseTransport};
const Kinds kGoesOn = {Action::Kind::kDisconnect, Action::Kind::kCloseTransport,
                       Action::Kind::kConnect};
const Error kRefused{ErrorCode::kUnavailable, "cannot reach the box: Connection refused"};

worker::MembershipOptions part_options() {
  auto options = Member::default_options();
  options.rank = 1;
  options.part = 2;
  options.parts = 3;
  options.box_name = "seven";
  options.boxes = {"box-5:9541", "box-7:9541", "box-9:9541"};
  return options;
}

proto::BoxMessage moved(const std::string& box, const std::string& address) {
  proto::BoxMessage message;
  message.mutable_moved()->set_box(box);
  message.mutable_moved()->set_address(address);
  return message;
}

proto::BoxMessage plan(const std::string& box, const std::string& address, int parts = 3) {
  proto::BoxMessage message;
  for (int part = 0; part < parts; ++part) {
    auto& place = *message.mutable_part_map()->add_parts();
    place.set_box(part == 2 ? box : "elsewhere");
    place.set_address(part == 2 ? address : "10.9.9.9:9541");
  }
  for (const char* known : {"box-5:9541", "box-9:9541"}) {
    message.mutable_part_map()->add_boxes(known);
  }
  return message;
}

proto::BoxMessage unavailable() {
  proto::BoxMessage message;
  message.mutable_failure()->set_code(static_cast<uint32_t>(ErrorCode::kUnavailable));
  message.mutable_failure()->set_message("not heard of yet");
  return message;
}

// Connects and asks for the part map. Returns the box that was asked.
std::string ask_part_map(Member& member) {
  const std::string box = member.actions.back().box;
  member.membership.on_connected(*nic::parse_endpoint("10.0.0.9", 9541), member.now_ns);
  member.act();
  REQUIRE(member.message().has_ask_part_map());
  return box;
}

// Continues after ask_part_map() up to a JOIN at the box that owns the part.
const proto::Join& join_again(Member& member) {
  REQUIRE(member.message().has_ask_data_addresses());
  member.deliver(Member::data_addresses());
  REQUIRE(member.act() == Kinds{Action::Kind::kMeasurePath});
  member.membership.on_path_mtu(9000, member.now_ns);
  member.act();
  return member.actions[0].message.join();
}

}  // namespace

TEST_CASE("JOIN names the part") {
  Member member(part_options());
  member.ask_join();
  CHECK(member.message().join().part() == 2);
  CHECK(member.message().join().parts() == 3);
}

TEST_CASE("a part that moves is resumed at its new box at once") {
  Member member(part_options());
  member.join();
  std::vector<std::byte> buffer(2048 * 4);
  member.membership.start({.tensor = 0, .input = buffer.data(), .output = buffer.data()});
  member.deliver(moved("nine", "box-9:9541"));
  REQUIRE(member.act() == kGoesOn);
  CHECK(member.actions.back().box == "box-9:9541");
  CHECK(member.membership.phase() == Phase::kRecovering);
  CHECK_THAT(member.membership.loss()->reason, Contains("box nine has taken over part 2"));
  CHECK(member.membership.exchange()->busy(0));

  CHECK(ask_part_map(member) == "box-9:9541");
  const proto::AskPartMap question = member.message().ask_part_map();
  CHECK(question.job() == "train");
  CHECK(question.protocol_version() == wire::kControlProtocolVersionMin);
  CHECK(question.lost_box() == "");
  member.deliver(plan("nine", ""));  // the map says "nine", the box that was asked
  member.act();
  const proto::Join join = join_again(member);
  CHECK(join.resumes());
  CHECK(join.epoch() == 3);
  CHECK(member.actions[1].message.has_rounds());
  member.resume(8, {0, 0, 0});
  CHECK(member.membership.phase() == Phase::kRunning);
  CHECK(member.membership.box() == "box-9:9541");
  CHECK(member.membership.history().recoveries == 1);
}

TEST_CASE("a part whose chunks move inside its box is resumed there at once") {
  Member member(part_options());
  member.join();
  const std::string box = member.membership.box();
  member.deliver(moved("seven", ""));
  REQUIRE(member.act() == kGoesOn);
  CHECK(member.actions.back().box == box);
  CHECK(member.membership.phase() == Phase::kRecovering);
  CHECK_THAT(member.membership.loss()->reason,
             Contains("box seven moves chunks of part 2 of the job to other pipelines"));
}

TEST_CASE("a lost box is tried first, then other boxes are told that it is lost") {
  Member member(part_options());
  member.join();
  member.lose_box();
  std::vector<std::string> asked;
  for (int attempt = 0; attempt < 6; ++attempt) {
    REQUIRE(member.advance());
    REQUIRE(member.act() == Kinds{Action::Kind::kConnect});
    asked.push_back(member.actions.back().box);
    member.membership.on_disconnected(kRefused, member.now_ns);
    REQUIRE(member.act() == kHangsUp);
  }
  CHECK(asked == std::vector<std::string>{"box-7:9541", "box-5:9541", "box-7:9541", "box-9:9541",
                                          "box-7:9541", "box-5:9541"});
  REQUIRE(member.advance());
  member.act();
  CHECK(ask_part_map(member) == "box-7:9541");  // it is reachable again
  CHECK(member.message().ask_part_map().lost_box() == "");
  member.membership.on_disconnected(kRefused, member.now_ns);
  member.act();
  REQUIRE(member.advance());
  member.act();
  CHECK(ask_part_map(member) == "box-9:9541");
  CHECK(member.message().ask_part_map().lost_box() == "seven");
  // An accepted connection alone is not an answer.
  CHECK(member.message().ask_part_map().lost_for_ms() > 1'000);
  CHECK(member.message().ask_part_map().rank() == 1);

  member.deliver(plan("five", "box-5:9541"));
  REQUIRE(member.act() == kGoesOn);
  CHECK(ask_part_map(member) == "box-5:9541");
  CHECK(member.message().ask_part_map().lost_box() == "");
  member.deliver(plan("five", "box-5:9541"));
  member.act();
  CHECK(join_again(member).part() == 2);
}

TEST_CASE("boxes that left the part map are asked when the boxes in it are gone") {
  Member member(part_options());
  member.join();
  member.deliver(moved("nine", "box-9:9541"));
  member.act();
  ask_part_map(member);
  proto::BoxMessage alone = plan("nine", "");
  alone.mutable_part_map()->clear_boxes();
  alone.mutable_part_map()->add_boxes("box-9:9541");
  member.deliver(alone);
  member.act();
  join_again(member);
  member.resume(8, {0, 0, 0});
  member.lose_box();
  std::set<std::string> asked;
  for (int attempt = 0; attempt < 6; ++attempt) {
    REQUIRE(member.advance());
    REQUIRE(member.act() == Kinds{Action::Kind::kConnect});
    asked.insert(member.actions.back().box);
    member.membership.on_disconnected(kRefused, member.now_ns);
    REQUIRE(member.act() == kHangsUp);
  }
  CHECK(asked == std::set<std::string>{"box-9:9541", "box-5:9541", "box-7:9541"});
}

TEST_CASE("only a bounded number of former boxes is kept") {
  std::vector<std::string> boxes;
  for (char name = 'a'; name <= 'z'; ++name) boxes.emplace_back(1, name);
  proto::PartMap plan;
  plan.add_boxes("c");
  plan.add_boxes("new");
  worker::merge_box_list(plan, boxes);
  CHECK(boxes == std::vector<std::string>{"c", "new", "a", "b", "d", "e", "f", "g", "h", "i"});
}

TEST_CASE("a box that answers is not reported lost, whatever its answer") {
  Member member(part_options());
  member.join();
  member.lose_box();
  REQUIRE(member.advance());
  member.act();
  CHECK(ask_part_map(member) == "box-7:9541");
  member.deliver(unavailable());
  REQUIRE(member.act() == kHangsUp);
  REQUIRE(member.advance());
  member.act();
  CHECK(ask_part_map(member) == "box-5:9541");
  CHECK(member.message().ask_part_map().lost_box() == "");
}

TEST_CASE("boxes that redirect a worker to each other are asked less and less often") {
  Member member(part_options());
  member.join();
  member.deliver(moved("nine", "box-9:9541"));
  uint32_t at_once = 0;
  bool to_nine = false;
  while (member.act() == kGoesOn) {
    ++at_once;
    ask_part_map(member);
    member.deliver(to_nine ? plan("nine", "box-9:9541") : plan("five", "box-5:9541"));
    to_nine = !to_nine;
  }
  CHECK(at_once == 4);
  const uint64_t before_ns = member.now_ns;
  REQUIRE(member.advance());
  REQUIRE(member.act() == Kinds{Action::Kind::kConnect});
  CHECK(member.now_ns - before_ns >= 25'000'000);
}

TEST_CASE("a worker cannot continue in a job that was divided into another number of parts") {
  Member member(part_options());
  member.join();
  member.deliver(moved("nine", "box-9:9541"));
  REQUIRE(member.act() == kGoesOn);
  ask_part_map(member);
  member.deliver(plan("nine", "", 4));
  REQUIRE(member.membership.failure());
  CHECK_THAT(member.membership.failure()->message,
             Contains("in 4 parts now") && Contains("it was in 3 when") && Contains("start all"));
}

TEST_CASE("a worker that joins early waits for the part map, then joins the box that it names") {
  Member member(part_options());
  member.ask_join();
  member.deliver(unavailable());
  REQUIRE(member.act() == kHangsUp);
  CHECK(member.membership.phase() == Phase::kJoining);
  REQUIRE(member.advance());
  REQUIRE(member.act() == Kinds{Action::Kind::kConnect});
  CHECK(member.actions.back().box == "box-7:9541");
  member.membership.on_connected(*nic::parse_endpoint("10.0.0.1", 9541), member.now_ns);
  member.act();
  member.deliver(moved("nine", "box-9:9541"));
  REQUIRE(member.act() == kGoesOn);
  CHECK(member.actions.back().box == "box-9:9541");
  CHECK(member.membership.phase() == Phase::kJoining);
}

TEST_CASE("a worker whose other parts have ended disconnects without LEAVE") {
  Member member(part_options());
  member.join();
  member.membership.abandon({ErrorCode::kBoxLost, "another part"});
  CHECK(member.act() == kHangsUp);
  CHECK(member.membership.phase() == Phase::kFailed);
  CHECK(member.membership.failure()->message == "another part");
}

}  // namespace pbox::test::membership_parts_test
