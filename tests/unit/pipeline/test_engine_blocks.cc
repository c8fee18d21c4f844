// Chunks in blocks (nic/wire/blocks.h) in an engine: what is summed, encoded, sent and given back.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cfloat>
#include <cmath>

#include "nic/quantize/reference.h"
#include "tests/unit/pipeline/box.h"

namespace pbox::test::engine_blocks_test {
namespace {

using pipeline::CommandKind;
using pipeline::Counter;
using wire::Dtype;
using Blocks = std::vector<std::byte>;
using Floats = std::vector<float>;

constexpr uint32_t kElements = 2000;  // ends within a block
constexpr Dtype kFormats[] = {Dtype::kQ8, Dtype::kQ4};

JobOptions job_of(Dtype dtype) {
  return {.fragment_bytes = 512, .chunk_elements = kElements, .dtype = dtype};
}

Floats gradient_of(uint32_t rank, uint32_t round) {
  Floats values(kElements);
  for (uint32_t i = 0; i < kElements; ++i) {
    values[i] = static_cast<float>(std::sin(i * (rank + 1.0) + round));
  }
  return values;
}

Blocks encoded(Dtype dtype, const Floats& values, Floats& residue,
               const quantize::RoundingSource& source) {
  Blocks blocks(wire::payload_bytes(dtype, kElements));
  quantize::reference::encode(dtype, blocks.data(), values.data(), residue.data(), kElements,
                              quantize::key_of(source));
  return blocks;
}

Blocks push_of(Dtype dtype, uint32_t rank, uint32_t round) {
  Floats none(kElements);
  return encoded(dtype, gradient_of(rank, round), none, {.rank = rank, .round = round});
}

// The packets of a chunk's blocks, as PUSH or STATE.
std::vector<Packet> packets_of(Box& box, const JobOptions& job, uint32_t rank, uint32_t round,
                               const Blocks& blocks,
                               wire::PacketType type = wire::PacketType::kPush) {
  const uint32_t bytes = wire::fragment_bytes_of(job.dtype, job.fragment_bytes);
  std::vector<Packet> packets;
  for (uint32_t at = 0; at < blocks.size(); at += bytes) {
    Packet& packet = packets.emplace_back(box.pull(job, rank, round));
    packet.header.set_type(type);
    packet.header.fragment = static_cast<uint16_t>(at / bytes);
    packet.header.dtype_scale = static_cast<uint16_t>(job.dtype);
    const auto length = std::min<size_t>(bytes, blocks.size() - at);
    packet.header.payload_bytes = static_cast<uint16_t>(length);
    packet.payload.assign(blocks.begin() + at, blocks.begin() + ptrdiff_t(at + length));
  }
  return packets;
}

void deliver_all(Box& box, const std::vector<Packet>& packets) {
  for (const Packet& packet : packets) box.deliver(packet);
}

// Returns the result that the box sends to each rank, which must be the same for all.
Blocks take_result(Box& box, const JobOptions& job) {
  const uint32_t bytes = wire::fragment_bytes_of(job.dtype, job.fragment_bytes);
  std::vector<Blocks> results(job.workers, Blocks(wire::payload_bytes(job.dtype, kElements)));
  for (const Sent& sent : box.take_all()) {
    if (sent.header.type() != wire::PacketType::kResult) continue;
    CHECK((sent.header.dtype_scale & 15) == static_cast<uint32_t>(job.dtype));
    const uint32_t rank = (sent.header.spi & 63) % job.workers;
    REQUIRE(sent.header.fragment * bytes + sent.payload.size() <= results[rank].size());
    std::copy(sent.payload.begin(), sent.payload.end(),
              results[rank].begin() + sent.header.fragment * bytes);
  }
  for (const Blocks& result : results) REQUIRE(result == results[0]);
  return results[0];
}

Floats decoded(Dtype dtype, const Blocks& blocks) {
  Floats values(kElements);
  quantize::reference::accumulate(dtype, values.data(), blocks.data(), kElements, FLT_MAX, false,
                                  false);
  return values;
}

// The box's encoding of a sum of pushes.
Blocks result_of(Dtype dtype, const std::vector<Blocks>& pushes, uint32_t round, Floats& residue) {
  Floats sum(kElements);
  for (size_t index = 0; index < pushes.size(); ++index) {
    quantize::reference::accumulate(dtype, sum.data(), pushes[index].data(), kElements, FLT_MAX,
                                    index > 0, false);
  }
  return encoded(dtype, sum, residue,
                 {.seed = quantize::hash_of("job 0"), .rank = quantize::kBoxRank, .round = round});
}

}  // namespace

TEST_CASE("a box adds pushes in blocks and encodes the sum with what is left of earlier ones") {
  for (const Dtype dtype : kFormats) {
    Box box;
    const JobOptions job = job_of(dtype);
    box.admit(job);
    Floats residue(kElements);
    for (uint32_t round = 0; round < 4; ++round) {
      std::vector<Blocks> pushes;
      for (const uint32_t rank : {0u, 1u}) {
        pushes.push_back(push_of(dtype, rank, round));
        deliver_all(box, packets_of(box, job, rank, round, pushes.back()));
        deliver_all(box, packets_of(box, job, rank, round, pushes.back()));  // duplicates
      }
      CHECK(take_result(box, job) == result_of(dtype, pushes, round, residue));
    }
    CHECK(std::any_of(residue.begin(), residue.end(), [](float left) { return left != 0; }));
  }
}

TEST_CASE("numerics ordered: the result does not depend on the order of arrival") {
  for (const Dtype dtype : kFormats) {
    std::vector<Blocks> results;
    for (const bool reversed : {false, true}) {
      Box box;
      JobOptions job = job_of(dtype);
      job.workers = 3;
      job.numerics = wire::Numerics::kOrdered;
      box.admit(job);
      for (uint32_t step = 0; step < 3; ++step) {
        const uint32_t rank = reversed ? 2 - step : step;
        deliver_all(box, packets_of(box, job, rank, 0, push_of(dtype, rank, 0)));
      }
      results.push_back(take_result(box, job));
    }
    CHECK(results[0] == results[1]);
    Floats residue(kElements);
    std::vector<Blocks> pushes;
    for (const uint32_t rank : {0u, 1u, 2u}) pushes.push_back(push_of(dtype, rank, 0));
    CHECK(results[0] == result_of(dtype, pushes, 0, residue));
  }
}

TEST_CASE("a result in blocks that a rank gives back goes out as it came, and the residue is 0") {
  for (const Dtype dtype : kFormats) {
    Box box;
    const JobOptions job = job_of(dtype);
    auto spec = spec_of(job);
    spec.chunks[0].first_round = 4;
    spec.chunks[0].copy_rank = 1;
    auto shard = pipeline::JobShard::create(spec);
    REQUIRE(shard);
    box.engine.execute({.kind = CommandKind::kInstall, .shard = shard->get()});
    // Rank 0's address is learned from its PULL.
    box.deliver(box.pull(job, 0, 4));
    const Blocks given = push_of(dtype, 7, 4);
    deliver_all(box, packets_of(box, job, 1, 4, given, wire::PacketType::kState));
    CHECK(take_result(box, job) == given);
    Floats residue(kElements);
    std::vector<Blocks> pushes;
    for (const uint32_t rank : {0u, 1u}) {
      pushes.push_back(push_of(dtype, rank, 5));
      deliver_all(box, packets_of(box, job, rank, 5, pushes.back()));
    }
    CHECK(take_result(box, job) == result_of(dtype, pushes, 5, residue));
    box.engine.execute({.kind = CommandKind::kRemove, .shard = shard->get()});
  }
}

TEST_CASE("a push of another type or length than the chunk's blocks is rejected") {
  for (const Dtype dtype : kFormats) {
    Box box;
    const JobOptions job = job_of(dtype);
    box.admit(job);
    const auto packets = packets_of(box, job, 0, 0, push_of(dtype, 0, 0));
    Packet packet = packets[0];
    packet.header.dtype_scale = static_cast<uint16_t>(Dtype::kF32);
    box.deliver(packet);
    CHECK(box.count(Counter::kRejectDtype) == 1);
    packet = packets[0];
    packet.payload.resize(job.fragment_bytes);  // as many bytes as the path carries
    packet.header.payload_bytes = static_cast<uint16_t>(job.fragment_bytes);
    box.deliver(packet);
    CHECK(box.count(Counter::kRejectLength) == 1);
    packet = packets[0];
    packet.header.fragment = static_cast<uint16_t>(packets.size());
    box.deliver(packet);
    CHECK(box.count(Counter::kRejectFragment) == 1);
    CHECK(box.count(Counter::kAggregated) == 0);
  }
}

TEST_CASE("guard: a block that is NaN reaches the result, counts as 0, or ends the job") {
  for (const Dtype dtype : kFormats) {
    for (const auto policy : {wire::Guard::kFlag, wire::Guard::kZero, wire::Guard::kReject}) {
      Box box;
      JobOptions job = job_of(dtype);
      job.guard = {policy, 0};
      auto& shard = box.admit(job);
      Floats bad = gradient_of(1, 0), none(kElements);
      bad[100] = INFINITY;
      const Blocks pushes[] = {push_of(dtype, 0, 0), encoded(dtype, bad, none, {.rank = 1})};
      for (const uint32_t rank : {0u, 1u}) {
        deliver_all(box, packets_of(box, job, rank, 0, pushes[rank]));
      }
      CHECK(shard.sessions()[1].nonfinite.get() == 1);
      CHECK(shard.sessions()[0].nonfinite.get() == 0);
      CHECK(shard.has_rejected() == (policy == wire::Guard::kReject));
      if (policy == wire::Guard::kReject) continue;
      const auto result = decoded(dtype, take_result(box, job));
      const uint32_t elements = wire::block_layout(dtype).elements;
      for (uint32_t i = 0; i < kElements; ++i) {
        const bool is_bad = i / elements == 100 / elements;
        if (is_bad && policy == wire::Guard::kFlag) {
          REQUIRE(std::isnan(result[i]));
          continue;
        }
        const float exact = gradient_of(0, 0)[i] + (is_bad ? 0.0f : gradient_of(1, 0)[i]);
        REQUIRE(std::fabs(result[i] - exact) < (dtype == Dtype::kQ8 ? 0.05 : 1.1));
      }
    }
  }
}

TEST_CASE("a mean in blocks is divided by the ranks that are in each fragment") {
  for (const Dtype dtype : kFormats) {
    Box box;
    JobOptions job = job_of(dtype);
    job.partial = true;
    job.reduction = pipeline::Reduction::kMean;
    auto& shard = box.admit(job);
    const auto lost = packets_of(box, job, 1, 0, push_of(dtype, 1, 0));
    box.deliver(lost[0]);
    deliver_all(box, packets_of(box, job, 0, 0, push_of(dtype, 0, 0)));
    box.engine.execute(
        {.kind = CommandKind::kExclude, .shard = &shard, .rank = 1, .generation = 21});
    const auto sent = box.take_all();
    REQUIRE_FALSE(sent.empty());
    const auto own = decoded(dtype, push_of(dtype, 0, 0)),
               other = decoded(dtype, push_of(dtype, 1, 0));
    const uint32_t bytes = wire::fragment_bytes_of(dtype, job.fragment_bytes);
    const uint32_t per_fragment = wire::payload_elements(dtype, bytes);
    for (const Sent& packet : sent) {
      if (packet.header.type() != wire::PacketType::kResult) continue;
      const uint32_t first = packet.header.fragment * per_fragment;
      CHECK(packet.header.contributors() == (first == 0 ? 0 : 1));  // 0: all
      const float value = quantize::reference::load_element(dtype, packet.payload.data(), 5);
      const float exact = first == 0 ? (own[5] + other[5]) / 2 : own[first + 5];
      CHECK(std::fabs(value - exact) < (dtype == Dtype::kQ8 ? 0.05 : 0.6));
    }
  }
}

}  // namespace pbox::test::engine_blocks_test
