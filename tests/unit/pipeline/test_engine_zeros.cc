// Fragments of gradients that are zero, named instead of pushed.
#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>

#include "base/rng.h"
#include "nic/wire/chunk_layout.h"
#include "nic/wire/zeros.h"
#include "tests/unit/pipeline/box.h"

namespace pbox::test::engine_zeros_test {
namespace {

using pipeline::Counter;
using wire::Dtype;
using wire::PacketType;

uint32_t chunk_bytes(const JobOptions& job) {
  return wire::payload_bytes(job.dtype, job.chunk_elements);
}

uint32_t fragment_bytes(const JobOptions& job) {
  return wire::fragment_bytes_of(job.dtype, job.fragment_bytes);
}

// A rank's chunk: half of the fragments are zero, and half of the values of the others are 0 or -0.
std::vector<std::byte> draw_gradient(const JobOptions& job, Rng& rng) {
  std::vector<std::byte> bytes(chunk_bytes(job));
  for (uint32_t begin = 0; begin < bytes.size(); begin += fragment_bytes(job)) {
    if (rng.below(2) == 0) continue;
    const auto end = std::min<size_t>(bytes.size(), begin + fragment_bytes(job));
    if (wire::is_in_blocks(job.dtype)) {
      for (size_t at = begin; at < end; ++at) bytes[at] = static_cast<std::byte>(rng.below(100));
      continue;
    }
    std::vector<float> values((end - begin) / wire::dtype_bytes(job.dtype));
    for (float& value : values) {
      constexpr float kDrawn[] = {0.0f, -0.0f, -0.0f, 1.5f, -1.5f, 3e7f, 0.3f, INFINITY};
      value = kDrawn[rng.below(std::size(kDrawn))];
    }
    reduce::narrow(job.dtype, bytes.data() + begin, values.data(), values.size());
  }
  return bytes;
}

// The pushes of a rank: of all fragments, or, if it names zeros, of those that are not zero.
std::vector<Packet> pushes_of(Box& box, const JobOptions& job, uint32_t rank, uint32_t round,
                              const std::vector<std::byte>& bytes, bool names_zeros) {
  const uint32_t fragments = wire::fragment_count(chunk_bytes(job), fragment_bytes(job));
  const uint64_t zeros = wire::zero_fragments(bytes.data(), chunk_bytes(job), fragment_bytes(job),
                                              wire::full_mask(fragments));
  std::vector<Packet> packets;
  for (uint32_t fragment = 0; fragment < fragments; ++fragment) {
    if (names_zeros && (zeros >> fragment & 1) != 0) continue;
    Packet packet = box.pull(job, rank, round);
    packet.header.set_type(PacketType::kPush);
    packet.header.fragment = static_cast<uint16_t>(fragment);
    packet.header.dtype_scale = static_cast<uint16_t>(job.dtype);
    const uint32_t length = wire::fragment_length(chunk_bytes(job), fragment_bytes(job), fragment);
    packet.header.payload_bytes = static_cast<uint16_t>(length);
    const auto begin = bytes.begin() + fragment * fragment_bytes(job);
    packet.payload.assign(begin, begin + length);
    packets.push_back(packet);
  }
  if (names_zeros && zeros != 0) packets.push_back(box.zeros(job, rank, zeros, round));
  return packets;
}

// Overwrites `bytes` with the result that is sent to rank 0. Returns its packets.
size_t take_result(Box& box, const JobOptions& job, std::vector<std::byte>& bytes) {
  uint64_t taken = 0;
  size_t packets = 0;
  for (const Sent& sent : box.take_all()) {
    if ((sent.header.spi & 63) != 0) continue;
    ++packets;
    uint64_t mask = uint64_t{1} << sent.header.fragment;
    if (sent.header.type() == PacketType::kZeros) std::memcpy(&mask, sent.payload.data(), 8);
    REQUIRE((taken & mask) == 0);
    taken |= mask;
    for (uint64_t left = mask; left != 0; left &= left - 1) {
      const auto fragment = static_cast<uint32_t>(std::countr_zero(left));
      const auto at = bytes.begin() + fragment * fragment_bytes(job);
      const uint32_t length =
          wire::fragment_length(chunk_bytes(job), fragment_bytes(job), fragment);
      if (sent.header.type() == PacketType::kZeros) {
        std::fill_n(at, length, std::byte{0});
      } else {
        REQUIRE(sent.payload.size() == length);
        std::copy(sent.payload.begin(), sent.payload.end(), at);
      }
    }
  }
  const uint32_t fragments = wire::fragment_count(chunk_bytes(job), fragment_bytes(job));
  REQUIRE(taken == wire::full_mask(fragments));
  return packets;
}

}  // namespace

TEST_CASE("zeros that are named give the same bits as zeros that are pushed") {
  JobOptions job{.workers = 3, .chunk_elements = 2500};
  job.dtype = GENERATE(Dtype::kF32, Dtype::kF16, Dtype::kBf16, Dtype::kQ8, Dtype::kQ4);
  job.numerics = GENERATE(wire::Numerics::kFast, wire::Numerics::kOrdered);
  job.guard.policy = GENERATE(wire::Guard::kFlag, wire::Guard::kZero);
  job.reduction = GENERATE(pipeline::Reduction::kSum, pipeline::Reduction::kMean);
  JobOptions knowing = job;
  knowing.takes_zeros = true;
  Box pushed, named;
  pushed.admit(job);
  named.admit(knowing);
  Rng rng(29);
  size_t packets = 0, packets_of_named = 0;
  for (uint32_t round = 0; round < 24; ++round) {
    CAPTURE(static_cast<int>(job.dtype), round);
    std::vector<Packet> of_pushed, of_named;
    for (uint32_t rank = 0; rank < job.workers; ++rank) {
      const auto gradient = draw_gradient(job, rng);
      for (const Packet& packet : pushes_of(pushed, job, rank, round, gradient, false)) {
        of_pushed.push_back(packet);
      }
      for (const Packet& packet : pushes_of(named, job, rank, round, gradient, true)) {
        of_named.push_back(packet);
      }
    }
    // f32 sums depend on the order of the ranks, so both boxes get the ranks in the same order. The
    // place of the zeros among a rank's fragments does not matter.
    for (const Packet& packet : of_pushed) pushed.deliver(packet);
    for (const Packet& packet : of_named) named.deliver(packet);
    std::vector<std::byte> expected(chunk_bytes(job), std::byte{1});
    std::vector<std::byte> result(chunk_bytes(job), std::byte{2});
    packets += take_result(pushed, job, expected);
    packets_of_named += take_result(named, job, result);
    REQUIRE(result == expected);
  }
  CHECK(packets_of_named <= packets);
  CHECK(named.count(Counter::kZeroFragments) > 0);
  CHECK(pushed.count(Counter::kZeroResults) == 0);
  CHECK(named.count(Counter::kRoundsFinished) == 24);
}

TEST_CASE("zeros make a sum of -0 a sum of 0, whichever comes first") {
  const bool zeros_first = GENERATE(false, true);
  Box box;
  const JobOptions job{.workers = 3, .takes_zeros = true};
  box.admit(job);
  if (zeros_first) box.deliver(box.zeros(job, 1, 0b001));
  box.push_chunk(job, 0, -0.0f);
  if (!zeros_first) box.deliver(box.zeros(job, 1, 0b001));
  for (const uint32_t fragment : {1u, 2u}) box.deliver(box.push(job, 1, fragment, -0.0f));
  box.push_chunk(job, 2, -0.0f);
  std::map<uint32_t, std::vector<Sent>> by_fragment;
  for (const Sent& sent : box.take_all()) by_fragment[sent.header.fragment].push_back(sent);
  REQUIRE(by_fragment.size() == 3);
  CHECK(by_fragment[0][0].header.type() == PacketType::kZeros);
  CHECK(by_fragment[1][0].header.type() == PacketType::kResult);
  CHECK(std::signbit(by_fragment[1][0].value(7)));
}

TEST_CASE("a result's zeros are named to the ranks that know the packet, and pushed to others") {
  Box box;
  JobOptions job{.workers = 2, .chunk_elements = 1024, .takes_zeros = true};
  auto& shard = box.admit(job);
  shard.sessions()[1].takes_zeros = false;
  for (uint32_t round = 0; round < 2; ++round) {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      box.deliver(box.push(job, rank, 1, 2.0f, round));
      box.deliver(box.zeros(job, rank, 0b1101, round));
    }
    std::map<uint32_t, std::vector<Sent>> by_rank;
    for (const Sent& sent : box.take_all()) by_rank[sent.header.spi & 63].push_back(sent);
    REQUIRE(by_rank[0].size() == 2);
    CHECK(by_rank[0][0].header.type() == PacketType::kZeros);
    CHECK(by_rank[0][0].header.fragment == 0);
    CHECK(by_rank[0][0].header.round == round);
    CHECK(by_rank[0][0].header.dtype_scale == 0);
    uint64_t mask = 0;
    std::memcpy(&mask, by_rank[0][0].payload.data(), sizeof(mask));
    CHECK(mask == 0b1101);
    CHECK(by_rank[0][1].header.fragment == 1);
    CHECK(by_rank[0][1].value(3) == 4.0f);
    REQUIRE(by_rank[1].size() == 4);
    for (const Sent& sent : by_rank[1]) {
      CHECK(sent.header.type() == PacketType::kResult);
      CHECK(sent.value(3) == (sent.header.fragment == 1 ? 4.0f : 0.0f));
    }
  }
  CHECK(box.count(Counter::kZeroFragments) == 12);
  CHECK(box.count(Counter::kZeroResults) == 6);
}

TEST_CASE("fragments that have been claimed are not claimed again by a packet that names them") {
  Box box;
  const JobOptions job{.workers = 2, .takes_zeros = true};
  auto& shard = box.admit(job);
  box.deliver(box.push(job, 0, 1, 2.0f));
  box.deliver(box.zeros(job, 0, 0b011));  // fragment 1 has arrived with data
  CHECK(box.count(Counter::kZeroFragments) == 1);
  box.deliver(box.zeros(job, 0, 0b011));
  CHECK(box.count(Counter::kDuplicate) == 1);
  CHECK(shard.chunks()[0].claimed[0] == 0b011);
  box.deliver(box.push(job, 0, 0, 9.0f));
  CHECK(box.count(Counter::kDuplicate) == 2);
  box.deliver(box.zeros(job, 0, 0b111));
  CHECK(shard.chunks()[0].complete_workers == 1);
  box.deliver(box.zeros(job, 0, 0b111));
  CHECK(shard.chunks()[0].complete_workers == 1);
  CHECK(box.count(Counter::kDuplicate) == 3);
  box.deliver(box.zeros(job, 1, 0b111));
  const auto sent = box.take_all();
  REQUIRE(sent.size() == 4);
  CHECK(box.count(Counter::kRoundsFinished) == 1);
  for (const Sent& packet : sent) {
    if (packet.header.fragment == 1) CHECK(packet.value() == 2.0f);
  }
}

TEST_CASE("a packet of zeros that does not fit its chunk or round is counted and changes nothing") {
  Box box;
  const JobOptions job{.workers = 2, .takes_zeros = true};
  auto& shard = box.admit(job);
  const auto is_counted = [&](const Packet& packet, Counter counter) {
    const uint64_t before = box.count(counter);
    box.deliver(packet);
    CHECK(box.count(counter) == before + 1);
    CHECK(shard.chunks()[0].claimed[0] == 0);
  };
  is_counted(box.zeros(job, 0, 0b1000), Counter::kRejectFragment);
  is_counted(box.zeros(job, 0, 0b1001), Counter::kRejectFragment);
  Packet packet = box.zeros(job, 0, 0b111);
  packet.header.fragment = 1;
  is_counted(packet, Counter::kRejectFragment);
  packet = box.zeros(job, 0, 0b111);
  packet.header.dtype_scale = 1;
  is_counted(packet, Counter::kRejectDtype);
  packet = box.zeros(job, 0, 0b111);
  packet.header.payload_bytes = 16;
  packet.payload.resize(16);
  is_counted(packet, Counter::kRejectLength);
  is_counted(box.zeros(job, 0, 0b111, 1), Counter::kRejectRound);
  packet = box.zeros(job, 0, 0b111);
  ++packet.header.epoch;
  is_counted(packet, Counter::kRejectEpoch);
}

TEST_CASE("slots, tables and relaxed jobs take no zeros by name") {
  JobOptions slots{.job = 1, .is_collective = true};
  JobOptions table{.job = 2, .mode = pipeline::Mode::kOptimize, .row_bytes = 64};
  JobOptions relaxed{.job = 3,
                     .mode = pipeline::Mode::kOptimize,
                     .sync = {.model = wire::SyncModel::kAsp},
                     .relaxed_model = wire::SyncModel::kAsp};
  Box box;
  uint64_t refused = 0;
  for (const JobOptions& job : {slots, table, relaxed}) {
    box.admit(job);
    box.deliver(box.zeros(job, 0, 0b111));
    CHECK(box.count(Counter::kRejectType) == ++refused);
  }
}

TEST_CASE("zeros of the round before are answered like a push of it, and older ones are stale") {
  Box box;
  const JobOptions job{.workers = 2, .takes_zeros = true};
  box.admit(job);
  for (uint32_t round = 0; round < 2; ++round) {
    box.deliver(box.push(job, 0, 0, 1.0f, round));
    box.deliver(box.zeros(job, 0, 0b110, round));
    box.deliver(box.push(job, 1, 0, 1.0f, round));
    box.deliver(box.zeros(job, 1, 0b110, round));
    CHECK(box.take_all().size() == 4);
  }
  box.deliver(box.zeros(job, 1, 0b110, 1));
  const auto again = box.take_all();
  REQUIRE(again.size() == 1);
  CHECK(again[0].header.type() == PacketType::kZeros);
  CHECK((again[0].header.flags & wire::flag::kRetransmission) != 0);
  box.deliver(box.zeros(job, 1, 0b110, 0));
  CHECK(box.count(Counter::kStale) == 1);
  CHECK(box.take_all().empty());
}

TEST_CASE("a PULL brings the zeros that the rank lacks, by name") {
  const auto delivery = GENERATE(wire::Delivery::kBroadcast, wire::Delivery::kPull);
  Box box;
  const JobOptions job{.workers = 2, .delivery = delivery, .takes_zeros = true};
  box.admit(job);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    box.deliver(box.push(job, rank, 0, 1.0f));
    box.deliver(box.zeros(job, rank, 0b110));
  }
  CHECK(box.take_all().size() == (delivery == wire::Delivery::kPull ? 2 : 4));
  box.deliver(box.pull(job, 0, 0, 0b010));
  const auto sent = box.take_all();
  REQUIRE(sent.size() == 2);
  CHECK(sent[0].header.type() == PacketType::kResult);
  CHECK(sent[1].header.type() == PacketType::kZeros);
  CHECK(sent[1].header.fragment == 2);
}

TEST_CASE("with ranks that may be excluded, zeros are named by the number of ranks in them") {
  Box box;
  const JobOptions job{.workers = 3, .partial = true, .takes_zeros = true};
  auto& shard = box.admit(job);
  box.deliver(box.zeros(job, 2, 0b001));  // then rank 2 is lost
  for (uint32_t rank = 0; rank < 2; ++rank) box.deliver(box.zeros(job, rank, 0b111));
  CHECK(box.take_all().empty());
  box.engine.execute({.kind = pipeline::CommandKind::kExclude,
                      .shard = &shard,
                      .rank = 2,
                      .generation = shard.generation});
  std::vector<Sent> of_first;
  for (const Sent& sent : box.take_all()) {
    if ((sent.header.spi & 63) == 0) of_first.push_back(sent);
  }
  REQUIRE(of_first.size() == 2);
  uint64_t masks[2] = {};
  for (size_t index = 0; index < 2; ++index) {
    CHECK(of_first[index].header.type() == PacketType::kZeros);
    std::memcpy(&masks[index], of_first[index].payload.data(), sizeof(uint64_t));
  }
  CHECK(masks[0] == 0b001);
  CHECK(of_first[0].header.contributors() == 0);
  CHECK(masks[1] == 0b110);
  CHECK(of_first[1].header.contributors() == 2);
}

TEST_CASE("initial weights that are zero may be named") {
  Box box;
  const JobOptions job{.workers = 2,
                       .mode = pipeline::Mode::kOptimize,
                       .optimizer = {.kind = optimizer::OptimizerKind::kSgd, .learning_rate = 1},
                       .takes_zeros = true};
  auto& shard = box.admit(job);
  std::fill_n(shard.chunks()[0].weights, job.chunk_elements, 3.0f);
  box.push_chunk(job, 1, 5.0f);
  box.deliver(box.zeros(job, 0, 0b110));
  box.deliver(box.push(job, 0, 0, 7.0f));
  for (const Sent& sent : box.take_all()) {
    CHECK(sent.header.type() == PacketType::kResult);
    CHECK(sent.value() == (sent.header.fragment == 0 ? 7.0f : 0.0f));
  }
  box.push_chunk(job, 1, 0.5f, 1);
  box.deliver(box.zeros(job, 0, 0b111, 1));
  size_t results = 0;
  for (const Sent& sent : box.take_all()) {
    ++results;
    CHECK(sent.value(9) == (sent.header.fragment == 0 ? 6.5f : -0.5f));
  }
  CHECK(results == 6);
}

}  // namespace pbox::test::engine_zeros_test
