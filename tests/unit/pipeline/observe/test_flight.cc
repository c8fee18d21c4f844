// The flight recorder: the records that a pipeline writes, and images that are cut off, torn or
// not a recorder's.
#include <catch2/catch.hpp>
#include <cstring>

#include "nic/wire/crc32c.h"
#include "pipeline/observe/flight_image.h"
#include "tests/unit/pipeline/box.h"

namespace pbox::test {
namespace {

using Catch::Contains;
using pipeline::FlightHead;
using pipeline::FlightKind;
using pipeline::FlightRecord;
using pipeline::Verdict;

wire::Header header_of(const FlightRecord& record) {
  wire::Header header;
  std::memcpy(&header, record.body, sizeof(header));
  return header;
}

std::vector<FlightRecord> packets_of(const std::vector<FlightRecord>& records) {
  std::vector<FlightRecord> packets;
  for (const FlightRecord& record : records) {
    if (record.kind == FlightKind::kPacket) packets.push_back(record);
  }
  return packets;
}

std::string error_of(const std::vector<std::byte>& image) {
  const auto images = pipeline::read_flight_images(image);
  return images ? "" : images.error().message;
}

FlightHead& head_of(std::vector<std::byte>& image) {
  return *reinterpret_cast<FlightHead*>(image.data());
}

}  // namespace

TEST_CASE("the flight recorder keeps each packet's header, time and verdict") {
  FlightMemory memory(1024);
  Box box(memory.span());
  const JobOptions job;
  box.admit(job);
  const Packet push = box.push(job, 1, 2, 1.0f);
  box.deliver(push);
  box.now_ns += 5;
  box.deliver(push);
  Packet wrong_epoch = box.push(job, 0, 0, 1.0f);
  ++wrong_epoch.header.epoch;
  box.deliver(wrong_epoch);
  auto bytes = wire_bytes(box.push(job, 0, 0, 1.0f));
  bytes.back() ^= std::byte{1};
  box.deliver_raw(bytes);
  box.deliver_raw(std::vector<std::byte>(10, std::byte{7}));
  box.deliver_raw({});
  box.deliver(box.pull(job, 0, 0, 0x5));

  const auto packets = packets_of(memory.records());
  REQUIRE(packets.size() == 7);
  const Verdict expected[] = {Verdict::kAggregated, Verdict::kDuplicate, Verdict::kEpoch,
                              Verdict::kTag,        Verdict::kTooShort,  Verdict::kTooShort,
                              Verdict::kPull};
  for (size_t index = 0; index < packets.size(); ++index) {
    CAPTURE(index);
    CHECK(packets[index].verdict == expected[index]);
  }
  const wire::Header header = header_of(packets[0]);
  CHECK(std::memcmp(&header, &push.header, sizeof(header)) == 0);
  CHECK(packets[0].subject == wire_bytes(push).size());
  CHECK(packets[1].at_ns == packets[0].at_ns + 5);
  CHECK(packets[4].body[9] == std::byte{7});
  CHECK(packets[4].body[10] == std::byte{0});
  uint64_t held_mask = 0;
  std::memcpy(&held_mask, packets[6].body + sizeof(wire::Header), sizeof(held_mask));
  CHECK(held_mask == 0x5);
}

TEST_CASE("the flight recorder keeps a digest of each result, of another piece in each round") {
  FlightMemory memory(1024);
  Box box(memory.span());
  const JobOptions job;
  box.admit(job);
  std::vector<std::vector<Sent>> rounds;
  for (uint32_t round = 0; round < 5; ++round) rounds.push_back(box.run_round(job, round));
  uint32_t next = 0;
  for (const FlightRecord& record : memory.records()) {
    if (record.kind != FlightKind::kLeft) continue;
    pipeline::LeftRecord left;
    std::memcpy(static_cast<void*>(&left), record.body, sizeof(left));
    CHECK(left.round == next);
    CHECK(left.piece == next % 3);
    uint32_t sent = 0;
    for (const Sent& packet : rounds.at(next)) {
      if (packet.header.fragment != left.piece) continue;
      CHECK(left.digested_bytes == packet.payload.size());
      CHECK(left.digest == wire::crc32c(0, packet.payload.data(), packet.payload.size()));
      ++sent;
    }
    CHECK(sent == job.workers);
    ++next;
  }
  CHECK(next == 5);
}

TEST_CASE("a full flight recorder keeps the newest records, in order") {
  FlightMemory memory(256);
  Box box(memory.span());
  const JobOptions job;
  box.admit(job);
  for (uint32_t round = 0; round < 100; ++round) box.run_round(job, round);
  const auto images = pipeline::read_flight_images(memory.span());
  REQUIRE(images);
  const auto& image = images->front();
  CHECK(image.pipeline_index == kPipeline);
  CHECK(image.records.size() == 255);  // one record may be incomplete
  CHECK(image.first > 0);
  uint64_t newest = 0;
  for (const FlightRecord& record : packets_of(image.records)) {
    const wire::Header header = header_of(record);
    CHECK(header.packet_number > newest);
    newest = header.packet_number;
  }
  CHECK(header_of(packets_of(image.records).back()).round == 99);
}

TEST_CASE("a copy of a flight recorder that is being written has complete records only") {
  FlightMemory memory(256);
  Box box(memory.span());
  const JobOptions job;
  box.admit(job);
  uint32_t round = 0;
  for (; round < 100; ++round) box.run_round(job, round);
  const auto before = memory.records();
  // Continues to write after the head was read, and again after half of the records were.
  const auto read = [&](uint64_t offset, std::span<std::byte> to) {
    const size_t half = to.size() / 2;
    std::memcpy(to.data(), memory.span().data() + offset, half);
    if (offset > 0) box.run_round(job, round++);
    std::memcpy(to.data() + half, memory.span().data() + offset + half, to.size() - half);
    return true;
  };
  const auto copy = pipeline::copy_flight_image(read);
  REQUIRE(copy);
  const auto images = pipeline::read_flight_images(std::as_bytes(std::span(*copy)));
  REQUIRE(images);
  const auto& records = images->front().records;
  REQUIRE(records.size() > 100);
  REQUIRE(records.size() < before.size());
  CHECK(images->front().first > 0);
  const size_t lost = before.size() - records.size();
  for (size_t index = 0; index < records.size(); ++index) {
    REQUIRE(std::memcmp(&records[index], &before[lost + index], sizeof(FlightRecord)) == 0);
  }
  CHECK_FALSE(pipeline::copy_flight_image([](uint64_t, std::span<std::byte>) { return false; }));
}

TEST_CASE("junk does not push the records of a job out of the flight recorder") {
  constexpr uint64_t kCapacity = 256;
  FlightMemory memory(kCapacity);
  Box box(memory.span());
  const JobOptions job;
  box.admit(job);
  box.run_round(job, 0);
  const size_t before = packets_of(memory.records()).size();
  REQUIRE(before > 0);
  for (uint64_t count = 0; count < 20 * kCapacity; ++count) {
    box.deliver_raw(std::vector<std::byte>(10, std::byte{7}));
    auto damaged = wire_bytes(box.push(job, 0, 0, 1.0f));
    damaged.back() ^= std::byte{1};
    box.deliver_raw(damaged);
  }
  CHECK(packets_of(memory.records()).back().verdict == Verdict::kTag);
  box.run_round(job, 1);
  size_t junk = 0, authentic = 0;
  for (const FlightRecord& record : packets_of(memory.records())) {
    const bool is_junk = record.verdict == Verdict::kTooShort || record.verdict == Verdict::kTag;
    ++(is_junk ? junk : authentic);
  }
  CHECK(authentic == 2 * before);
  CHECK(junk > 0);
  CHECK(junk <= kCapacity / 8);
}

TEST_CASE("a copy leaves the newest record out while junk replaces it, and keeps it otherwise") {
  FlightMemory memory(256);
  Box box(memory.span());
  const auto junk = [&](uint8_t value) {
    box.deliver_raw(std::vector<std::byte>(10, std::byte{value}));
  };
  for (uint32_t count = 0; count < 1000; ++count) junk(7);
  const auto records_of_copy = [&](const pipeline::FlightReader& read) {
    const auto copy = pipeline::copy_flight_image(read);
    REQUIRE(copy);
    const auto images = pipeline::read_flight_images(std::as_bytes(std::span(*copy)));
    REQUIRE(images);
    return images->front().records;
  };
  const auto read = [&](uint64_t offset, std::span<std::byte> to) {
    std::memcpy(to.data(), memory.span().data() + offset, to.size());
    return true;
  };
  const auto still = records_of_copy(read);
  CHECK(still.size() == memory.records().size());
  CHECK(still.back().body[0] == std::byte{7});
  uint8_t next = 8;
  const auto moving = records_of_copy([&](uint64_t offset, std::span<std::byte> to) {
    junk(next++);
    return read(offset, to);
  });
  CHECK(moving.size() == still.size() - 1);
  REQUIRE(next > 8);
  CHECK(records_of_copy(read).back().body[0] == std::byte(next - 1));
}

TEST_CASE("a file that is not a flight recorder's is rejected with the reason") {
  FlightMemory memory(256);
  const auto whole = memory.image();
  CHECK(error_of(whole) == "");
  CHECK_THAT(error_of({}), Contains("ends within"));
  CHECK_THAT(error_of({whole.begin(), whole.begin() + 100}), Contains("ends within the head"));
  CHECK_THAT(error_of({whole.begin(), whole.end() - 1}), Contains("ends within the records"));
  auto two = whole;
  two.insert(two.end(), whole.begin(), whole.end());
  CHECK(error_of(two) == "");
  two.pop_back();
  CHECK_THAT(error_of(two), Contains("ends within the records"));

  auto image = whole;
  image[0] = std::byte{'X'};
  CHECK_THAT(error_of(image), Contains("not a flight recording"));
  image = whole;
  head_of(image).version = 99;
  CHECK_THAT(error_of(image), Contains("format 99") && Contains("pboxctl of the box's release"));
  image = whole;
  head_of(image).capacity = 64;
  CHECK_THAT(error_of(image), Contains("damaged"));
  image = whole;
  ++head_of(image).begun_ns;
  CHECK_THAT(error_of(image), Contains("damaged"));
}

}  // namespace pbox::test
