#include "tests/unit/worker/membership/member.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "nic/wire/control_versions.h"

namespace pbox::test {

using worker::Action;

worker::MembershipOptions Member::default_options() {
  worker::MembershipOptions options;
  options.box = "box-7:9541";
  options.job = "train";
  options.world_size = 2;
  return options;
}

Member::Member(worker::MembershipOptions options, const proto::Optimizer& optimizer)
    : membership(std::move(options),
                 {{.name = "weights", .elements = 2048}, {.name = "bias", .elements = 7}},
                 optimizer) {}

std::vector<Action::Kind> Member::act() {
  actions = membership.take_actions();
  std::vector<Action::Kind> kinds;
  for (const Action& action : actions) kinds.push_back(action.kind);
  return kinds;
}

const proto::WorkerMessage& Member::message() const {
  REQUIRE(actions.size() == 1);
  REQUIRE(actions[0].kind == Action::Kind::kSend);
  return actions[0].message;
}

void Member::connect() {
  membership.begin(now_ns);
  REQUIRE(act() == std::vector{Action::Kind::kConnect});
  membership.on_connected(*nic::parse_endpoint("10.0.0.1", 9541), now_ns);
  act();
  REQUIRE(message().has_ask_data_addresses());
}

void Member::ask_join() {
  connect();
  deliver(data_addresses());
  REQUIRE(act() == std::vector{Action::Kind::kMeasurePath});
  membership.on_path_mtu(9000, now_ns);
  act();
}

void Member::join() {
  ask_join();
  deliver(session());
  REQUIRE(act() == std::vector{Action::Kind::kOpenTransport});
  membership.on_transport_open(facts(), now_ns);
  REQUIRE(act().empty());
  REQUIRE(membership.phase() == worker::Membership::Phase::kRunning);
}

void Member::lose_box() {
  membership.on_disconnected({ErrorCode::kBoxLost, "box box-7:9541 closed the connection"}, now_ns);
  REQUIRE(act() == std::vector{Action::Kind::kDisconnect, Action::Kind::kCloseTransport});
  REQUIRE(membership.phase() == worker::Membership::Phase::kRecovering);
}

void Member::ask_join_again() {
  REQUIRE(advance());
  REQUIRE(act() == std::vector{Action::Kind::kConnect});
  membership.on_connected(*nic::parse_endpoint("10.0.0.1", 9541), now_ns);
  act();
  REQUIRE(message().has_ask_data_addresses());
  deliver(data_addresses());
  REQUIRE(act() == std::vector{Action::Kind::kMeasurePath});
  membership.on_path_mtu(9000, now_ns);
  act();
}

void Member::resume(uint32_t epoch, const std::vector<uint32_t>& rounds,
                    const std::vector<uint32_t>& give) {
  auto again = session(epoch);
  again.mutable_session()->set_has_rounds(true);
  deliver(again);
  REQUIRE(act().empty());
  deliver(round_map(rounds, give));
  REQUIRE(act() == std::vector{Action::Kind::kOpenTransport});
  membership.on_transport_open(facts(), now_ns);
}

bool Member::advance(uint64_t limit_ns) {
  const uint64_t deadline_ns = membership.next_deadline_ns();
  const bool is_near = deadline_ns <= now_ns || deadline_ns - now_ns <= limit_ns;
  now_ns = is_near ? std::max(now_ns, deadline_ns) : now_ns + limit_ns;
  membership.on_time(now_ns);
  return is_near;
}

proto::BoxMessage Member::data_addresses() {
  proto::BoxMessage message;
  message.mutable_data_addresses()->add_addresses("");
  message.mutable_data_addresses()->add_addresses("10.0.1.1");
  message.mutable_data_addresses()->set_oldest_version(wire::kControlProtocolVersionMin);
  message.mutable_data_addresses()->set_newest_version(wire::kControlProtocolVersion);
  return message;
}

proto::BoxMessage Member::round_map(const std::vector<uint32_t>& rounds,
                                    const std::vector<uint32_t>& give) {
  proto::BoxMessage message;
  message.mutable_rounds()->mutable_rounds()->Add(rounds.begin(), rounds.end());
  message.mutable_rounds()->mutable_give()->Add(give.begin(), give.end());
  message.mutable_rounds()->set_last(true);
  return message;
}

proto::BoxMessage Member::session(uint32_t epoch) {
  proto::BoxMessage message;
  proto::Session& session = *message.mutable_session();
  session.set_epoch(epoch);
  session.set_generation(4);
  session.set_fragment_bytes(1024);
  session.set_chunk_bytes(4096);
  session.set_payload_crc(true);
  session.set_heartbeat_interval_ms(200);
  session.set_dead_after_ms(5'000);
  session.set_chunk_pipeline(std::string("\0\1\0", 3));
  for (const uint32_t spi : {0x1001u, 0x2002u}) {
    proto::PipelineSession& pipeline = *session.add_pipelines();
    pipeline.set_spi(spi);
    pipeline.set_credit_bytes(65'536);
    pipeline.set_udp_port(9542 + (spi >> 13));
  }
  return message;
}

worker::TransportFacts Member::facts() {
  return {.receivable_bytes = {1u << 20, 1u << 20}, .rto_floor_ns = 2'000'000};
}

}  // namespace pbox::test
