// The probe of a source trial, and what counts as an answer.
#include <catch2/catch.hpp>
#include <cstring>
#include <functional>

#include "worker/transport/source_trial.h"

namespace pbox::worker {
namespace {

SessionSpec session_of_two() {
  SessionSpec session;
  session.epoch = 5;
  session.generation = 6;
  session.fragment_bytes = 1024;
  session.chunk_bytes = 4096;
  session.tag = {.payload_crc = true};
  session.pipelines.push_back({0x1001, 65536, *nic::parse_endpoint("10.0.0.1", 9542)});
  session.pipelines.push_back({0x2002, 65536, *nic::parse_endpoint("10.0.0.1", 9543)});
  session.chunk_pipeline = {0, 0, 0, 1, 0, 1};
  return session;
}

struct Answer {
  wire::Header header;
  wire::StatusPayload status;

  std::vector<std::byte> bytes(const wire::TagPolicy& policy) const {
    std::vector<std::byte> packet(sizeof(header) + sizeof(status) + limits::kTagBytes);
    const auto tag = wire::make_tag(policy, header, reinterpret_cast<const std::byte*>(&status));
    std::memcpy(packet.data(), &header, sizeof(header));
    std::memcpy(packet.data() + sizeof(header), &status, sizeof(status));
    std::memcpy(packet.data() + sizeof(header) + sizeof(status), tag.data(), tag.size());
    return packet;
  }
};

Answer sound_answer() {
  Answer answer;
  answer.header.set_type(wire::PacketType::kStatus);
  answer.header.payload_bytes = sizeof(answer.status);
  answer.header.spi = 0x2002 | wire::kSpiToWorker;
  answer.header.packet_number = 1;
  answer.header.epoch = 5;
  answer.header.generation = 6;
  answer.header.chunk = 3;
  answer.status.missing_workers = 2;
  return answer;
}

bool is_answer(const std::vector<std::byte>& bytes) {
  return answers_probe(
      session_of_two(), 1,
      {.data = bytes.data(), .bytes = static_cast<uint32_t>(bytes.size()), .from = {}});
}

}  // namespace

TEST_CASE("a probe asks the pipeline for its first chunk in round 0 and declares nothing held") {
  const SessionSpec session = session_of_two();
  const nic::TxPacket first = make_probe(session, 1, 5'000'000, kHoldsNothing, nullptr);
  CHECK(first.header.packet_number == 1);
  const nic::TxPacket probe = make_probe(session, 1, 5'000'000, kHoldsNothing, nullptr);
  CHECK(to_string(*probe.to) == "10.0.0.1:9543");
  CHECK(probe.header.version() == limits::kWireVersion);
  CHECK(probe.header.type() == wire::PacketType::kPull);
  CHECK(probe.header.payload_bytes == sizeof(wire::PullPayload));
  CHECK(probe.header.spi == 0x2002);
  CHECK(probe.header.packet_number == 2);
  CHECK(probe.header.epoch == 5);
  CHECK(probe.header.generation == 6);
  CHECK(probe.header.chunk == 3);
  CHECK(probe.header.round == 0);
  CHECK(probe.header.timestamp_us == 5000);
  CHECK(probe.payload == kHoldsNothing.data());
  CHECK((probe.tag == wire::make_tag(session.tag, probe.header, probe.payload)));
}

TEST_CASE("only an authentic STATUS of the requested chunk answers a probe") {
  const wire::TagPolicy policy{.payload_crc = true};
  CHECK(is_answer(sound_answer().bytes(policy)));
  const std::pair<const char*, std::function<void(Answer&)>> cases[] = {
      {"another pipeline's", [](Answer& answer) { answer.header.spi = 0x1001 | 0x1000; }},
      {"the worker's own direction", [](Answer& answer) { answer.header.spi = 0x2002; }},
      {"an earlier epoch's", [](Answer& answer) { answer.header.epoch = 4; }},
      {"another generation's", [](Answer& answer) { answer.header.generation = 7; }},
      {"another chunk's", [](Answer& answer) { answer.header.chunk = 5; }},
      {"another round's", [](Answer& answer) { answer.header.round = 1; }},
      {"no answer", [](Answer& answer) { answer.header.set_type(wire::PacketType::kGrant); }},
  };
  for (const auto& [what, spoil] : cases) {
    INFO(what);
    Answer answer = sound_answer();
    spoil(answer);
    CHECK_FALSE(is_answer(answer.bytes(policy)));
  }
  auto damaged = sound_answer().bytes(policy);
  damaged[sizeof(wire::Header)] ^= std::byte{1};
  CHECK_FALSE(is_answer(damaged));
  auto short_one = sound_answer().bytes(policy);
  short_one.pop_back();
  CHECK_FALSE(is_answer(short_one));
  CHECK_FALSE(is_answer({}));
}

TEST_CASE("in a job that has begun a probe asks for the open round and accepts its result") {
  SessionSpec session = session_of_two();
  session.open_rounds = {4, 4, 4, 9, 4, 9};
  CHECK(make_probe(session, 1, 5'000'000, kHoldsNothing, nullptr).header.round == 9);
  Answer answer = sound_answer();
  const auto answers = [&] {
    const auto bytes = answer.bytes({.payload_crc = true});
    return answers_probe(
        session, 1,
        {.data = bytes.data(), .bytes = static_cast<uint32_t>(bytes.size()), .from = {}});
  };
  CHECK_FALSE(answers());  // the answer of round 0
  answer.header.round = 9;
  CHECK(answers());
  answer.header.set_type(wire::PacketType::kResult);
  CHECK(answers());
}

TEST_CASE("a pipeline's first chunk is the lowest it owns; one may own none") {
  SessionSpec session = session_of_two();
  CHECK(first_chunk_of(session, 0) == 0u);
  CHECK(first_chunk_of(session, 1) == 3u);
  CHECK_FALSE(first_chunk_of(session, 2));
}

}  // namespace pbox::worker
