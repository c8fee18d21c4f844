// A job in two parts, in which a process takes a lost rank's place. Each test plays both boxes.
// Tensor "weights" has two chunks, of which each part has one.
#include <catch2/catch.hpp>

#include "tests/unit/worker/membership/member.h"
#include "worker/membership/part_set.h"

namespace pbox::test::part_set_test {
namespace {

using worker::Action;
using worker::PartSet;

constexpr size_t kPieceElements = 1024;

worker::MembershipOptions rejoining() {
  auto options = Member::default_options();
  options.rank = 1;
  options.rejoin = true;
  return options;
}

proto::PartMap two_parts() {
  proto::PartMap map;
  map.set_chunk_bytes(4096);
  map.add_parts()->set_box("seven");
  map.add_parts()->set_box("nine");
  return map;
}

Action only_action(worker::Membership& part) {
  const auto actions = part.take_actions();
  REQUIRE(actions.size() == 1);
  return actions[0];
}

class Rejoiner {
 public:
  // `rounds`: those that are open in the two parts when this process joins them.
  Rejoiner(const worker::MembershipOptions& options, const std::array<uint32_t, 2>& rounds)
      : parts_(options, two_parts(), {{.name = "weights", .elements = 2 * kPieceElements}}, {}) {
    REQUIRE(parts_.size() == 2);
    for (const size_t part : {0, 1}) join(parts_[part], rounds[part]);
    begun = parts_.begin();
  }

  // Starts an operation and returns the types of the packets that the two boxes get for it.
  std::vector<wire::PacketType> start(bool initial_weights = false) {
    auto* const bytes = reinterpret_cast<std::byte*>(buffer_.data());
    parts_.start(
        {.tensor = 0, .input = bytes, .output = bytes, .initial_weights = initial_weights});
    std::vector<wire::PacketType> types;
    for (const size_t part : {0, 1}) {
      worker::Exchange& exchange = *parts_[part].exchange();
      const auto packets = exchange.to_send(0, kSecondNs);
      REQUIRE_FALSE(packets.empty());
      types.push_back(packets[0].header.type());
      flights_[part] = packets[0].header.round;
      exchange.sent(0, packets.size());
    }
    return types;
  }

  // Both boxes answer the operation with the result of the round that was asked for.
  void answer() {
    for (const size_t part : {0, 1}) deliver_result(part);
    REQUIRE(parts_.take_completed() == std::vector<uint32_t>{0});
  }

  // The round of the newest operation in a part.
  uint32_t flight(size_t part) const { return flights_[part]; }

  Status begun = ok_status();

 private:
  static void join(worker::Membership& part, uint32_t round) {
    part.begin(kSecondNs);
    REQUIRE(only_action(part).kind == Action::Kind::kConnect);
    part.on_connected(*nic::parse_endpoint("10.0.0.1", 9541), kSecondNs);
    REQUIRE(only_action(part).message.has_ask_data_addresses());
    part.on_message(Member::data_addresses(), kSecondNs);
    REQUIRE(only_action(part).kind == Action::Kind::kMeasurePath);
    part.on_path_mtu(9000, kSecondNs);
    REQUIRE(only_action(part).message.join().rejoins());
    auto session = Member::session();
    session.mutable_session()->set_chunk_pipeline(std::string(1, '\0'));
    session.mutable_session()->set_has_rounds(true);
    part.on_message(session, kSecondNs);
    part.on_message(Member::round_map({round}), kSecondNs);
    REQUIRE(only_action(part).kind == Action::Kind::kOpenTransport);
    part.on_transport_open(Member::facts(), kSecondNs);
    REQUIRE(part.phase() == worker::Membership::Phase::kRunning);
  }

  void deliver_result(size_t part) {
    const std::vector<std::byte> payload(1024);
    for (uint16_t fragment = 0; fragment < 4; ++fragment) {
      wire::Header header;
      header.set_type(wire::PacketType::kResult);
      header.payload_bytes = static_cast<uint16_t>(payload.size());
      header.spi = 0x1001 | wire::kSpiToWorker;
      header.packet_number = ++packet_number_;
      header.epoch = 3;
      header.generation = 4;
      header.round = flights_[part];
      header.fragment = fragment;
      const auto tag = wire::make_tag({.payload_crc = true}, header, payload.data());
      std::vector<std::byte> packet(sizeof(header));
      std::memcpy(packet.data(), &header, sizeof(header));
      packet.insert(packet.end(), payload.begin(), payload.end());
      packet.insert(packet.end(), tag.begin(), tag.end());
      const nic::RxPacket received{packet.data(), static_cast<uint32_t>(packet.size()), {}};
      parts_[part].exchange()->on_burst(0, {&received, 1}, kSecondNs);
    }
  }

  PartSet parts_;
  std::vector<float> buffer_ = std::vector<float>(2 * kPieceElements);
  std::array<uint32_t, 2> flights_ = {};
  uint64_t packet_number_ = 0;
};

constexpr auto kPush = wire::PacketType::kPush;
constexpr auto kPull = wire::PacketType::kPull;
using Types = std::vector<wire::PacketType>;

}  // namespace

TEST_CASE("a rejoined rank fetches the round that only one part has finished") {
  Rejoiner rank(rejoining(), {6, 5});
  REQUIRE(rank.begun);
  CHECK(rank.start() == Types{kPull, kPush});
  CHECK(rank.flight(0) == 5);
  CHECK(rank.flight(1) == 5);
  rank.answer();
  CHECK(rank.start() == Types{kPush, kPush});
  CHECK(rank.flight(0) == 6);
  CHECK(rank.flight(1) == 6);
}

TEST_CASE("a rank that rejoins while initial weights are under way is in one round in all parts") {
  auto options = rejoining();
  options.optimize = true;
  const bool is_first_ahead = GENERATE(true, false);
  Rejoiner rank(options, {is_first_ahead ? 1u : 0u, is_first_ahead ? 0u : 1u});
  REQUIRE(rank.begun);
  CHECK(rank.start(true) == (is_first_ahead ? Types{kPull, kPush} : Types{kPush, kPull}));
  rank.answer();
  for (const uint32_t round : {1u, 2u}) {
    CHECK(rank.start() == Types{kPush, kPush});
    CHECK(rank.flight(0) == round);
    CHECK(rank.flight(1) == round);
    rank.answer();
  }
}

TEST_CASE("a rank whose job went on between the joins of its parts has to rejoin") {
  const Rejoiner rank(rejoining(), {5, 7});
  REQUIRE_FALSE(rank.begun);
  CHECK_THAT(rank.begun.error().message, Catch::Contains("one part is in round 5, another in "
                                                         "round 7"));
}

TEST_CASE("with model drop the job may go on between the joins of a rank's parts") {
  auto options = rejoining();
  options.sync = {.model = wire::SyncModel::kDrop, .quorum = 1};
  Rejoiner rank(options, {5, 8});
  REQUIRE(rank.begun);
  // The newest result of the part that is ahead is fetched; the other part's push is late.
  CHECK(rank.start() == Types{kPush, kPull});
  CHECK(rank.flight(0) == 5);
  CHECK(rank.flight(1) == 7);
}

}  // namespace pbox::test::part_set_test
