// Joining, heartbeats, liveness, barriers and learning rates, without sockets.
#include <catch2/catch.hpp>

#include "tests/unit/worker/membership/member.h"

namespace pbox::test::membership_test {
namespace {

using Catch::Contains;
using worker::Action;
using Phase = worker::Membership::Phase;
using Kinds = std::vector<Action::Kind>;

proto::BoxMessage failure(ErrorCode code, const char* text) {
  proto::BoxMessage message;
  message.mutable_failure()->set_code(static_cast<uint32_t>(code));
  message.mutable_failure()->set_message(text);
  return message;
}

proto::BoxMessage heartbeat() {
  proto::BoxMessage message;
  message.mutable_heartbeat();
  return message;
}

worker::MembershipOptions without_recovery() {
  auto options = Member::default_options();
  options.recovery = worker::Recovery::kNone;
  return options;
}

const Kinds kGivesUp = {Action::Kind::kDisconnect, Action::Kind::kCloseTransport};

}  // namespace

TEST_CASE("a join connects, measures the path to each data address, and states every option") {
  auto options = Member::default_options();
  options.rank = 1;
  options.mean = true;
  options.chunk_bytes = 4096;
  options.lost_timeout_ms = 700;
  Member member(options);
  member.connect();
  member.deliver(Member::data_addresses());
  REQUIRE(member.act() == Kinds{Action::Kind::kMeasurePath});
  const auto& addresses = member.actions[0].addresses;
  REQUIRE(addresses.size() == 2);
  CHECK(to_string(addresses[0]) == "10.0.0.1:9541");  // where the control connection goes
  CHECK(to_string(addresses[1]) == "10.0.1.1:9541");
  member.membership.on_path_mtu(9000, member.now_ns);
  member.act();
  const proto::Join& join = member.message().join();
  CHECK(join.job() == "train");
  CHECK(join.rank() == 1);
  CHECK(join.world_size() == 2);
  CHECK(join.mode() == 0);
  CHECK(join.reduction() == 1);
  CHECK(join.chunk_bytes() == 4096);
  CHECK(join.path_mtu() == 9000);
  CHECK(join.lost_timeout_ms() == 700);
  REQUIRE(join.tensors_size() == 2);
  CHECK(join.tensors(0).name() == "weights");
  CHECK(join.tensors(0).elements() == 2048);
}

TEST_CASE("a join states the consistency model unless it is default BSP") {
  Member plain;
  plain.ask_join();
  CHECK_FALSE(plain.message().join().has_sync());
  auto options = without_recovery();
  options.sync = {.model = wire::SyncModel::kDpssp,
                  .staleness = 3,
                  .probability = 0.5f,
                  .release = wire::Release::kLazy};
  Member relaxed(options);
  relaxed.ask_join();
  const proto::Sync& sync = relaxed.message().join().sync();
  CHECK(sync.model() == 5);
  CHECK(sync.staleness() == 3);
  CHECK(sync.probability() == 0.5f);
  CHECK(sync.release() == 1);
  CHECK(sync.reads() == 0);
  CHECK(sync.quorum() == 0);
}

TEST_CASE("the exchange is built from the SESSION and bounded by what the transport can receive") {
  auto options = Member::default_options();
  options.window_bytes = 1u << 20;
  Member member(options);
  member.ask_join();
  member.deliver(Member::session());
  REQUIRE(member.act() == Kinds{Action::Kind::kOpenTransport});
  CHECK(member.actions[0].session.pipelines[1].spi == 0x2002);
  CHECK(member.membership.exchange() == nullptr);
  auto facts = Member::facts();
  facts.receivable_bytes[0] = 4096;  // room for one chunk at a time
  member.membership.on_transport_open(facts, member.now_ns);
  REQUIRE(member.membership.phase() == Phase::kRunning);
  std::vector<float> data(2048);
  auto* bytes = reinterpret_cast<std::byte*>(data.data());
  member.membership.start({.tensor = 0, .input = bytes, .output = bytes});
  member.membership.start({.tensor = 1, .input = bytes, .output = bytes});
  CHECK(member.membership.exchange()->to_send(0, member.now_ns).size() == 4);
  const auto second = member.membership.exchange()->to_send(1, member.now_ns);
  REQUIRE(second.size() == 4);
  CHECK(second[0].header.epoch == 3);
  CHECK(second[0].header.generation == 4);
}

TEST_CASE("a join in which any step fails ends with that step's error and disconnects") {
  const Error error{ErrorCode::kUnavailable, "no way there"};
  const auto must_fail = [](Member& member, const char* text) {
    CHECK(member.act() == kGivesUp);
    CHECK(member.membership.phase() == Phase::kFailed);
    REQUIRE(member.membership.failure());
    CHECK_THAT(member.membership.failure()->message, Contains(text));
    CHECK(member.membership.next_deadline_ns() == UINT64_MAX);
  };
  {
    Member member;
    member.membership.begin(member.now_ns);
    member.act();
    member.membership.on_disconnected(error, member.now_ns);
    must_fail(member, "no way there");
  }
  {
    Member member;
    member.connect();
    auto addresses = Member::data_addresses();
    addresses.mutable_data_addresses()->set_addresses(1, "nowhere");
    member.deliver(addresses);
    must_fail(member, "'nowhere'");
  }
  {
    Member member;
    member.connect();
    member.deliver(Member::data_addresses());
    member.act();
    member.membership.on_path_mtu(error, member.now_ns);
    must_fail(member, "no way there");
  }
  {
    Member member;
    member.ask_join();
    member.deliver(failure(ErrorCode::kMismatch, "rank 1 has another tensor"));
    must_fail(member, "rank 1 has another tensor");
    CHECK(member.membership.failure()->code == ErrorCode::kMismatch);
  }
  {
    Member member;
    member.ask_join();
    auto session = Member::session();
    session.mutable_session()->mutable_chunk_pipeline()->pop_back();
    member.deliver(session);
    must_fail(member, "does not match this worker's tensors");
  }
  {
    Member member;
    member.ask_join();
    member.deliver(Member::session());
    member.act();
    member.membership.on_transport_open(error, member.now_ns);
    must_fail(member, "no way there");
  }
}

TEST_CASE("a box that does not answer a join is named with the request after the time-out") {
  auto options = Member::default_options();
  options.join_timeout_ms = 1'000;
  for (const bool joins : {false, true}) {
    Member member(options);
    joins ? member.ask_join() : member.connect();
    const uint64_t start_ns = member.now_ns;
    while (member.membership.phase() == Phase::kJoining) {
      REQUIRE(member.advance());
      REQUIRE(member.now_ns - start_ns < 4 * kSecondNs);
    }
    CHECK(member.now_ns - start_ns >= 3 * kSecondNs);  // the box's own time-out comes first
    CHECK(member.membership.failure()->code == ErrorCode::kTimeout);
    CHECK_THAT(member.membership.failure()->message,
               Contains("box box-7:9541 did not answer") && Contains("job 'train'") &&
                   Contains(joins ? "JOIN" : "the worker") && Contains("1000 ms"));
  }
}

TEST_CASE(
    "heartbeats start with JOIN, continue while the transport opens, and use the box's interval") {
  Member member;
  member.ask_join();
  REQUIRE(member.advance());
  CHECK(member.now_ns == 2 * kSecondNs);
  member.act();
  CHECK(member.message().has_heartbeat());
  member.deliver(Member::session());
  member.act();
  for (int count = 0; count < 3; ++count) {
    REQUIRE(member.advance(200'000'000));
    member.act();
    CHECK(member.message().has_heartbeat());
  }
  member.membership.on_transport_open(Member::facts(), member.now_ns);
  REQUIRE(member.advance(200'000'000));
  member.act();
  CHECK(member.message().has_heartbeat());
}

TEST_CASE("a box that is silent for dead_after_ms is lost; any message resets the time") {
  Member member(without_recovery());
  member.join();
  const uint64_t start_ns = member.now_ns;
  while (member.now_ns < start_ns + 4 * kSecondNs) member.advance();
  member.deliver(heartbeat());
  while (member.now_ns < start_ns + 8 * kSecondNs) member.advance();
  CHECK(member.membership.phase() == Phase::kRunning);
  while (member.now_ns < start_ns + 10 * kSecondNs) member.advance(kSecondNs);
  REQUIRE(member.membership.phase() == Phase::kFailed);
  CHECK(member.membership.failure()->code == ErrorCode::kBoxLost);
  CHECK_THAT(member.membership.failure()->message, Contains("box box-7:9541 has not answered for"));
}

TEST_CASE("a broken connection and a FAILURE end the membership with the first error") {
  Member member(without_recovery());
  member.join();
  member.deliver(failure(ErrorCode::kWorkerLost, "rank 1 is lost"));
  member.membership.on_disconnected({ErrorCode::kBoxLost, "box closed"}, member.now_ns);
  CHECK(member.membership.failure()->code == ErrorCode::kWorkerLost);
  Member other(without_recovery());
  other.join();
  other.membership.on_disconnected({ErrorCode::kBoxLost, "box closed"}, other.now_ns);
  CHECK(other.membership.failure()->message == "box closed");
}

TEST_CASE("operations in flight are abandoned with the membership, and nothing starts afterwards") {
  Member member;
  member.join();
  std::vector<float> data(2048);
  auto* bytes = reinterpret_cast<std::byte*>(data.data());
  member.membership.start({.tensor = 0, .input = bytes, .output = bytes});
  member.membership.leave();
  // The transport is closed first. Until then its device may read memory that belongs to the
  // application again.
  REQUIRE(member.act() == Kinds{Action::Kind::kSend, Action::Kind::kCloseTransport});
  CHECK(member.actions[0].message.has_leave());
  CHECK(member.membership.phase() == Phase::kLeft);
  CHECK(member.membership.failure()->code == ErrorCode::kClosed);
  CHECK_FALSE(member.membership.exchange()->busy(0));
  member.membership.start({.tensor = 1, .input = bytes, .output = bytes});
  CHECK_FALSE(member.membership.exchange()->busy(1));
  member.membership.ask_barrier();
  member.membership.on_time(member.now_ns + 100 * kSecondNs);
  CHECK(member.act().empty());
}

TEST_CASE("a rank that left is an error if the box still waits for it when asked later") {
  Member member;
  member.join();
  std::vector<float> data(7);
  auto* bytes = reinterpret_cast<std::byte*>(data.data());
  member.membership.start({.tensor = 1, .input = bytes, .output = bytes});
  member.membership.exchange()->to_send(0, member.now_ns);
  member.membership.exchange()->sent(0, 1);
  proto::BoxMessage left;
  left.mutable_peer_left()->set_rank(1);
  left.mutable_peer_left()->set_reason("rank 7 was lost");
  const auto status = [&](uint64_t asked_ns) {
    wire::Header header;
    header.set_type(wire::PacketType::kStatus);
    const wire::StatusPayload payload{
        .received_mask = 1, .missing_workers = 1, .first_missing_rank = 1};
    header.payload_bytes = sizeof(payload);
    header.spi = 0x1001 | wire::kSpiToWorker;
    header.epoch = 3;
    header.generation = 4;
    header.chunk = 2;
    header.timestamp_us = static_cast<uint32_t>(asked_ns / 1000);
    std::vector<std::byte> packet(sizeof(header) + sizeof(payload) + limits::kTagBytes);
    const auto tag =
        wire::make_tag({.payload_crc = true}, header, reinterpret_cast<const std::byte*>(&payload));
    std::memcpy(packet.data(), &header, sizeof(header));
    std::memcpy(packet.data() + sizeof(header), &payload, sizeof(payload));
    std::memcpy(packet.data() + sizeof(header) + sizeof(payload), tag.data(), tag.size());
    const nic::RxPacket received{packet.data(), static_cast<uint32_t>(packet.size()), {}};
    member.membership.exchange()->on_burst(0, {&received, 1}, member.now_ns);
  };
  member.now_ns += kSecondNs;
  const uint64_t before_ns = member.now_ns - 1'000'000;
  member.deliver(left);
  status(before_ns);  // sent before the rank left, so the rank may have pushed since
  member.membership.on_time(member.now_ns);
  CHECK(member.membership.phase() == Phase::kRunning);
  member.now_ns += kSecondNs;
  status(member.now_ns);
  member.membership.on_time(member.now_ns);
  REQUIRE(member.membership.phase() == Phase::kFailed);
  CHECK(member.membership.failure()->code == ErrorCode::kWorkerLost);
  CHECK_THAT(member.membership.failure()->message,
             Contains("rank 1 left") && Contains("'bias'") && Contains(": rank 7 was lost"));
}

TEST_CASE("barriers and learning rates are numbered by request and counted by confirmation") {
  Member member;
  member.join();
  for (uint64_t sequence = 1; sequence <= 2; ++sequence) {
    member.membership.ask_barrier();
    member.act();
    CHECK(member.message().barrier().sequence() == sequence);
  }
  proto::BoxMessage released;
  released.mutable_barrier_released()->set_sequence(1);
  member.deliver(released);
  CHECK(member.membership.requests().barriers_released() == 1);
  member.membership.ask_learning_rate(0.5f);
  member.act();
  CHECK(member.message().set_learning_rate().sequence() == 1);
  CHECK(member.message().set_learning_rate().learning_rate() == 0.5f);
  CHECK(member.membership.requests().learning_rates_set() == 0);
  proto::BoxMessage set;
  set.mutable_learning_rate_set()->set_sequence(1);
  member.deliver(set);
  CHECK(member.membership.requests().learning_rates_set() == 1);
}

}  // namespace pbox::test::membership_test
