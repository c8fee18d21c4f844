// A worker and boxes of other releases. Answers of control protocol 2 are as its definitions encode
// them.
#include <catch2/catch.hpp>

#include "tests/control_v2.pb.h"
#include "tests/golden/control_frames_v2.h"
#include "tests/support/hexadecimal.h"
#include "tests/unit/worker/membership/member.h"

namespace pbox::test {
namespace {

using Catch::Contains;
using worker::Action;
using worker::Membership;

constexpr wire::AddedField kNumericsIsNew[] = {
    {"Join.numerics", 3, wire::AddedField::Scope::kJob,
     [](const proto::WorkerMessage& message) { return message.join().numerics() != 0; }}};

proto::BoxMessage frame_v2(const std::string& name) {
  proto::BoxMessage message;
  for (const auto& frame : golden::kBoxFramesV2) {
    if (frame.name == name) REQUIRE(message.ParseFromString(from_hexadecimal(frame.bytes)));
  }
  REQUIRE(message.kind_case() != proto::BoxMessage::KIND_NOT_SET);
  return message;
}

proto::v2::WorkerMessage as_v2(const proto::WorkerMessage& message) {
  proto::v2::WorkerMessage older;
  REQUIRE(older.ParseFromString(message.SerializeAsString()));
  return older;
}

proto::BoxMessage data_addresses_of(uint32_t oldest, uint32_t newest) {
  auto message = Member::data_addresses();
  message.mutable_data_addresses()->set_oldest_version(oldest);
  message.mutable_data_addresses()->set_newest_version(newest);
  return message;
}

worker::MembershipOptions with_new_field() {
  auto options = Member::default_options();
  options.numerics = wire::Numerics::kOrdered;
  options.added_fields = kNumericsIsNew;
  return options;
}

}  // namespace

TEST_CASE("a worker joins a box of control protocol 2 and runs there") {
  Member member;
  member.connect();
  member.deliver(frame_v2("data_addresses"));
  REQUIRE(member.act() == std::vector{Action::Kind::kMeasurePath});
  member.membership.on_path_mtu(9000, member.now_ns);
  member.act();
  const auto join = as_v2(member.message());
  CHECK(join.join().protocol_version() == 2);  // the only one that such a box admits
  CHECK(join.join().job() == "train");
  member.deliver(frame_v2("session"));
  REQUIRE(member.act() == std::vector{Action::Kind::kOpenTransport});
  member.membership.on_transport_open(Member::facts(), member.now_ns);
  REQUIRE(member.membership.phase() == Membership::Phase::kRunning);
  for (const char* name : {"set_priorities", "heartbeat", "learning_rate_set", "membership"}) {
    member.deliver(frame_v2(name));
  }
  CHECK(member.membership.phase() == Membership::Phase::kRunning);
  CHECK(member.membership.absent_ranks() == std::vector<uint32_t>{1});
  member.deliver(frame_v2("moved"));
  CHECK(member.membership.phase() == Membership::Phase::kRecovering);
}

TEST_CASE("a worker refuses, before it joins, to lose a field that a box of protocol 2 lacks") {
  Member member(with_new_field());
  member.connect();
  member.deliver(frame_v2("data_addresses"));
  member.act();
  REQUIRE(member.membership.failure().has_value());
  CHECK(member.membership.failure()->code == ErrorCode::kVersionMismatch);
  CHECK_THAT(member.membership.failure()->message,
             Contains("job 'train' uses Join.numerics, which needs control protocol 3 or later") &&
                 Contains("box box-7:9541 supports control protocol 2, this libpbox") &&
                 Contains("upgrade the box, or do without that option"));
}

TEST_CASE("a worker states to a box of its own release what the box must know") {
  Member member(with_new_field());
  member.connect();
  member.deliver(data_addresses_of(2, 3));
  member.act();
  member.membership.on_path_mtu(9000, member.now_ns);
  member.act();
  CHECK(member.message().join().protocol_version() == 3);
  REQUIRE(member.message().needs_size() == 1);
  CHECK(member.message().needs(0) == "Join.numerics");
}

TEST_CASE("a worker refuses a box with which it has no version in common") {
  Member member;
  member.connect();
  member.deliver(data_addresses_of(4, 5));
  member.act();
  REQUIRE(member.membership.failure().has_value());
  CHECK(member.membership.failure()->code == ErrorCode::kVersionMismatch);
  CHECK_THAT(member.membership.failure()->message, Contains("supports control protocol 4 to 5") &&
                                                       Contains("upgrade the older of the two"));
}

TEST_CASE("a worker whose part goes to a box that lacks a field looks for another one") {
  auto options = with_new_field();
  options.boxes = {"box-7:9541", "box-8:9541"};
  Member member(options);
  member.connect();
  member.deliver(data_addresses_of(2, 3));
  member.act();
  member.membership.on_path_mtu(9000, member.now_ns);
  member.act();
  member.deliver(Member::session());
  member.act();
  member.membership.on_transport_open(Member::facts(), member.now_ns);
  member.lose_box();
  REQUIRE(member.advance());
  member.act();
  member.membership.on_connected(*nic::parse_endpoint("10.0.0.2", 9541), member.now_ns);
  member.act();
  CHECK(as_v2(member.message()).ask_part_map().protocol_version() == 2);
  auto map = frame_v2("part_map");
  map.mutable_part_map()->mutable_parts()->DeleteSubrange(1, 1);
  member.deliver(map);
  member.act();
  member.deliver(frame_v2("data_addresses"));
  CHECK(member.membership.phase() == Membership::Phase::kRecovering);
}

TEST_CASE("a worker leaves a box that needs it to know what it does not") {
  Member member;
  member.join();
  auto message = Member::session();
  message.add_needs("Session.compression");
  member.deliver(message);
  REQUIRE(member.membership.failure().has_value());
  CHECK_THAT(member.membership.failure()->message,
             Contains("uses Session.compression, which this libpbox"));
}

}  // namespace pbox::test
