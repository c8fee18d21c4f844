// The box sends a worker's packets to an address that the worker has proved, and to no other.
#include <catch2/catch.hpp>

#include "tests/unit/pipeline/box.h"

namespace pbox::test {
namespace {

using pipeline::Counter;

const nic::Endpoint kHome = address_of(0, 0);

nic::Endpoint other_port(nic::Endpoint endpoint) {
  ++endpoint.port;
  return endpoint;
}

// A job of one chunk whose rank 0 joined from kHome's host.
struct Scene {
  Box box;
  JobOptions job;
  pipeline::JobShard& shard = box.admit(job);
  pipeline::Session& session = shard.sessions()[0];

  Scene() {
    for (auto& one : shard.sessions()) one.known_host = address_of(0, one.rank);
  }
  Packet pull_from(const nic::Endpoint& from, uint32_t round = 0) {
    Packet packet = box.pull(job, 0, round);
    packet.from = from;
    return packet;
  }
  Packet push_from(const nic::Endpoint& from, uint32_t fragment = 0) {
    Packet packet = box.push(job, 0, fragment, 1.0f);
    packet.from = from;
    return packet;
  }
  std::vector<Sent> answers_to(const Packet& packet) {
    box.deliver(packet);
    return box.take_all();
  }
  // Returns a PULL that repeats the challenge with which the box answers `asked`.
  Packet proof_of(const Packet& asked) {
    const auto sent = answers_to(asked);
    REQUIRE(sent.size() == 1);
    Packet proof = pull_from(asked.from, asked.header.round);
    proof.payload.insert(proof.payload.end(), sent[0].payload.begin(), sent[0].payload.end());
    proof.header.payload_bytes = static_cast<uint16_t>(proof.payload.size());
    return proof;
  }
};

}  // namespace

TEST_CASE("one packet with a number far ahead does not capture a session") {
  for (const bool has_known_host : {false, true}) {
    Scene scene;
    if (!has_known_host) scene.session.known_host.reset();
    scene.box.deliver(scene.push_from(kHome));
    Packet forged = scene.push_from(other_port(kHome), 1);
    forged.header.packet_number = UINT64_MAX;
    scene.box.deliver(forged);
    CHECK(scene.session.endpoint == kHome);
    forged = scene.push_from(kHome, 1);
    forged.header.packet_number = UINT64_MAX - 1;
    scene.box.deliver(forged);
    // The worker's own packets still count as newer.
    const Packet next = scene.push_from(kHome, 2);
    scene.box.deliver(next);
    CHECK(scene.session.newest_packet_number == next.header.packet_number);
  }
}

TEST_CASE("a first packet with a number far ahead is followed by the worker's own") {
  Scene scene;
  Packet forged = scene.pull_from(other_port(kHome));
  forged.header.packet_number = UINT64_MAX;
  scene.box.deliver(forged);
  scene.box.deliver(scene.push_from(kHome));
  CHECK(scene.session.endpoint == kHome);
}

TEST_CASE("a PULL from an unknown address is answered with a challenge that is no longer") {
  Scene scene;
  for (uint32_t rank : {0u, 1u}) scene.box.push_chunk(scene.job, rank, 1.0f);
  scene.box.take_all();  // the results
  const nic::Endpoint stranger = address_of(7, 7);
  const Packet asked = scene.pull_from(stranger);
  const auto sent = scene.answers_to(asked);
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].to == stranger);
  CHECK(sent[0].header.type() == wire::PacketType::kStatus);
  CHECK(sent[0].payload.size() <= asked.payload.size());
  CHECK(scene.box.count(Counter::kAddressesChallenged) == 1);
  CHECK(scene.session.endpoint == kHome);
  // A PULL from the worker's own address still gets what the worker lacks.
  CHECK(scene.answers_to(scene.pull_from(kHome)).size() == 3);
}

TEST_CASE("a worker that echoes the challenge from its new address is sent what it lacks there") {
  Scene scene;
  for (uint32_t rank : {0u, 1u}) scene.box.push_chunk(scene.job, rank, 1.0f);
  scene.box.take_all();
  const nic::Endpoint moved = address_of(7, 7);
  const auto sent = scene.answers_to(scene.proof_of(scene.pull_from(moved)));
  CHECK(sent.size() == 3);
  for (const Sent& packet : sent) CHECK(packet.to == moved);
  CHECK(scene.session.endpoint == moved);
  CHECK(scene.box.count(Counter::kAddressesProved) == 1);
}

TEST_CASE("a challenge counts once, and only from the address that it was sent to") {
  Scene scene;
  scene.box.deliver(scene.push_from(kHome));
  const nic::Endpoint moved = address_of(7, 7);
  const Packet proof = scene.proof_of(scene.pull_from(moved));
  Packet stolen = proof;
  stolen.from = address_of(8, 8);
  CHECK(scene.answers_to(stolen).at(0).payload.size() == sizeof(wire::Challenge));
  CHECK(scene.session.endpoint == kHome);
  // The PULL from the thief's address has replaced the challenge.
  CHECK(scene.answers_to(proof).at(0).payload.size() == sizeof(wire::Challenge));
  const Packet valid = scene.proof_of(scene.pull_from(moved));
  CHECK(scene.answers_to(valid).at(0).to == moved);
  CHECK(scene.session.endpoint == moved);
  const Packet back = scene.proof_of(scene.pull_from(kHome));
  CHECK(scene.answers_to(back).at(0).to == kHome);
  CHECK(scene.session.endpoint == kHome);
  CHECK(scene.answers_to(valid).at(0).payload.size() == sizeof(wire::Challenge));
  CHECK(scene.session.endpoint == kHome);
}

TEST_CASE("pushes from an unknown address count, and results go to the known one") {
  Scene scene;
  scene.box.deliver(scene.push_from(kHome, 0));
  for (uint32_t fragment : {1u, 2u}) {
    scene.box.deliver(scene.push_from(address_of(7, 7), fragment));
  }
  scene.box.push_chunk(scene.job, 1, 1.0f);
  CHECK(scene.box.count(Counter::kAggregated) == 6);
  const auto results = scene.box.take_all();
  REQUIRE(results.size() == 6);
  for (const Sent& packet : results) {
    CHECK((packet.to == kHome || packet.to == address_of(0, 1)));
  }
}

TEST_CASE("until the first PUSH any port of the worker's host will do, afterwards only that one") {
  Scene scene;
  scene.box.deliver(scene.pull_from(kHome));
  scene.box.deliver(scene.pull_from(other_port(kHome)));
  CHECK(scene.session.endpoint == other_port(kHome));
  scene.box.deliver(scene.push_from(kHome));
  CHECK(scene.session.endpoint == kHome);
  scene.box.deliver(scene.pull_from(other_port(kHome)));
  CHECK(scene.session.endpoint == kHome);
}

TEST_CASE("a worker that was never heard at its host is sent nothing but challenges elsewhere") {
  Scene scene;
  const nic::Endpoint elsewhere = address_of(7, 7);
  for (uint32_t fragment : {0u, 1u, 2u}) scene.box.deliver(scene.push_from(elsewhere, fragment));
  scene.box.push_chunk(scene.job, 1, 1.0f);
  for (const Sent& packet : scene.box.take_all()) CHECK(packet.to == address_of(0, 1));
  scene.box.deliver(scene.push_from(elsewhere, 0));  // the worker misses the result
  CHECK(scene.box.take_all().empty());
  const auto results = scene.answers_to(scene.proof_of(scene.pull_from(elsewhere)));
  CHECK(results.size() == 3);
}

TEST_CASE("a path probe from an unknown address is answered there, with as many bytes") {
  Scene scene;
  Packet probe = scene.pull_from(address_of(7, 7));
  probe.payload.resize(1000);
  probe.header.payload_bytes = 1000;
  const auto sent = scene.answers_to(probe);
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].to == address_of(7, 7));
  CHECK(sent[0].payload.size() == 1000);
  CHECK_FALSE(scene.session.reachable);
}

}  // namespace pbox::test
