// How a membership uses the job's consistency model. Tensor 1 has one chunk of seven floats, the
// third chunk of the job, on the first pipeline.
#include <catch2/catch.hpp>

#include "tests/unit/worker/membership/member.h"

namespace pbox::test::membership_sync_test {
namespace {

using Catch::Contains;
using Phase = worker::Membership::Phase;

constexpr uint32_t kChunk = 2;
constexpr size_t kElements = 7;

worker::MembershipOptions relaxed(const wire::SyncSpec& sync) {
  auto options = Member::default_options();
  options.optimize = true;
  options.mean = true;
  options.recovery = worker::Recovery::kNone;
  options.sync = sync;
  return options;
}

void deliver(Member& member, wire::PacketType type, uint32_t round, const void* payload,
             size_t bytes) {
  wire::Header header;
  header.set_type(type);
  header.payload_bytes = static_cast<uint16_t>(bytes);
  header.spi = 0x1001 | wire::kSpiToWorker;
  header.epoch = 3;
  header.generation = 4;
  header.chunk = kChunk;
  header.round = round;
  std::vector<std::byte> packet(sizeof(header) + bytes + limits::kTagBytes);
  const auto tag =
      wire::make_tag({.payload_crc = true}, header, static_cast<const std::byte*>(payload));
  std::memcpy(packet.data(), &header, sizeof(header));
  std::memcpy(packet.data() + sizeof(header), payload, bytes);
  std::memcpy(packet.data() + sizeof(header) + bytes, tag.data(), tag.size());
  const nic::RxPacket received{packet.data(), static_cast<uint32_t>(packet.size()), {}};
  member.membership.exchange()->on_burst(0, {&received, 1}, member.now_ns);
}

void push(Member& member, std::vector<float>& values) {
  auto* bytes = reinterpret_cast<std::byte*>(values.data());
  member.membership.start({.tensor = 1, .input = bytes, .output = bytes});
  REQUIRE(member.membership.exchange()->to_send(0, member.now_ns).size() == 1);
  member.membership.exchange()->sent(0, 1);
}

// Exchanges initial weights that all equal `weight`.
void begin(Member& member, float weight) {
  std::vector<float> values(kElements, weight);
  push(member, values);
  deliver(member, wire::PacketType::kResult, 0, values.data(), values.size() * sizeof(float));
  REQUIRE_FALSE(member.membership.exchange()->busy(1));
}

void acknowledge(Member& member, uint32_t round) {
  const wire::StatusPayload status{.received_mask = 1};
  deliver(member, wire::PacketType::kStatus, round, &status, sizeof(status));
  REQUIRE_FALSE(member.membership.exchange()->busy(1));
}

}  // namespace

TEST_CASE("a rank of a relaxed job resumes where the box has counted it") {
  const auto model = GENERATE(wire::SyncModel::kAsp, wire::SyncModel::kSsp, wire::SyncModel::kDrop);
  Member member(relaxed({.model = model, .quorum = 1}));
  member.join();
  begin(member, 1.0f);
  std::vector<float> gradient(kElements, 1.0f);
  push(member, gradient);
  member.lose_box();
  CHECK(member.membership.phase() == Phase::kRecovering);
  member.ask_join_again();
  REQUIRE(member.actions.size() == 2);
  CHECK(member.actions[0].message.join().resumes());
  CHECK(member.actions[0].message.join().epoch() == 3);
  const bool is_counted = GENERATE(false, true);  // the push in flight
  member.resume(3, {0, 0, is_counted ? 2u : 1u});
  CHECK(member.membership.phase() == Phase::kRunning);
  const auto packets = member.membership.exchange()->to_send(0, member.now_ns);
  REQUIRE(packets.size() == 1);
  // In both cases the worker first asks whether the box has the push.
  CHECK(packets[0].header.type() == wire::PacketType::kPull);
  CHECK(packets[0].header.round == 1);
}

TEST_CASE("a relaxed job whose box has lost its state ends with the box's reason") {
  Member member(relaxed({.model = wire::SyncModel::kSsp}));
  member.join();
  member.lose_box();
  member.ask_join_again();
  proto::BoxMessage lost;
  lost.mutable_failure()->set_code(static_cast<uint32_t>(ErrorCode::kBoxLost));
  lost.mutable_failure()->set_message("the box that had the job's state was lost");
  member.deliver(lost);
  CHECK(member.membership.phase() == Phase::kFailed);
  CHECK(member.membership.failure()->code == ErrorCode::kBoxLost);
  CHECK_THAT(member.membership.failure()->message, Contains("the job's state was lost"));
}

TEST_CASE("heartbeats report the staleness of reads from the first read on") {
  Member member(relaxed({.model = wire::SyncModel::kEssp, .staleness = 3}));
  member.join();
  const auto reads = [&] {
    REQUIRE(member.advance(200'000'000));
    member.act();
    const auto& reported = member.message().heartbeat().reads_by_staleness();
    return std::vector<uint64_t>(reported.begin(), reported.end());
  };
  CHECK(reads().empty());
  begin(member, 1.0f);
  CHECK(reads() == std::vector<uint64_t>{1});
  std::vector<float> gradient(kElements, 0.0f);
  for (const uint32_t round : {1u, 2u}) {
    push(member, gradient);
    acknowledge(member, round);
  }
  CHECK(reads() == std::vector<uint64_t>{1, 1, 1});
}

TEST_CASE("own gradients are applied with the box's learning rate and mean") {
  proto::Optimizer optimizer;
  optimizer.set_kind(1);
  optimizer.set_learning_rate(0.5f);
  const auto options = relaxed({.model = wire::SyncModel::kEssp, .staleness = 4});
  Member member(options, optimizer);
  member.join();
  begin(member, 10.0f);
  std::vector<float> values(kElements, 4.0f);
  push(member, values);
  acknowledge(member, 1);
  CHECK(values == std::vector<float>(kElements, 9.0f));  // 10 - 0.5 * 4 / 2
  member.membership.ask_learning_rate(2.0f);
  proto::BoxMessage set;
  set.mutable_learning_rate_set()->set_sequence(1);
  member.deliver(set);
  values.assign(kElements, 1.0f);
  push(member, values);
  acknowledge(member, 2);
  CHECK(values == std::vector<float>(kElements, 8.0f));
}

TEST_CASE("after a resumption own gradients are applied with the newest learning rate") {
  proto::Optimizer optimizer;
  optimizer.set_kind(1);
  optimizer.set_learning_rate(0.5f);
  Member member(relaxed({.model = wire::SyncModel::kEssp, .staleness = 4}), optimizer);
  member.join();
  begin(member, 10.0f);
  member.membership.ask_learning_rate(2.0f);
  proto::BoxMessage set;
  set.mutable_learning_rate_set()->set_sequence(1);
  member.deliver(set);
  member.act();
  member.lose_box();
  member.ask_join_again();
  member.resume(3, {0, 0, 1});
  std::vector<float> values(kElements, 4.0f);
  push(member, values);
  acknowledge(member, 1);
  CHECK(values == std::vector<float>(kElements, 6.0f));  // 10 - 2 * 4 / 2
}

TEST_CASE("memory for cached reads is allocated when the job begins; fresh reads need none") {
  Member cached(relaxed({.model = wire::SyncModel::kSsp, .reads = wire::Reads::kCached}));
  cached.join();
  CHECK(cached.membership.exchange()->statistics().shadow_bytes >= 2048 * 4 + 7 * 4);
  Member fresh(relaxed({.model = wire::SyncModel::kSsp}));
  fresh.join();
  CHECK(fresh.membership.exchange()->statistics().shadow_bytes == 0);
}

}  // namespace pbox::test::membership_sync_test
