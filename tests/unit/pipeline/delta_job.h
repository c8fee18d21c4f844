// A job with compressed tensors in mode optimize, at an engine: what its ranks push, and what the
// box makes of it.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cfloat>
#include <cmath>

#include "nic/quantize/reference.h"
#include "pipeline/optimizer/reference.h"
#include "tests/unit/pipeline/box.h"

namespace pbox::test::engine_deltas_test {

using pipeline::CommandKind;
using pipeline::Counter;
using pipeline::Mode;
using wire::Dtype;
using wire::PacketType;
using Bytes = std::vector<std::byte>;
using Floats = std::vector<float>;

inline constexpr uint32_t kElements = 2000;  // ends within a block
inline constexpr Dtype kFormats[] = {Dtype::kQ8, Dtype::kQ4};

inline JobOptions job_of(Dtype dtype) {
  return {
      .fragment_bytes = 512,
      .chunk_elements = kElements,
      .dtype = dtype,
      .mode = Mode::kOptimize,
      .optimizer = {
          .kind = optimizer::OptimizerKind::kNesterov, .learning_rate = 0.1f, .momentum = 0.9f}};
}

inline Floats values_of(uint32_t rank, uint32_t round) {
  Floats values(kElements);
  for (uint32_t i = 0; i < kElements; ++i) {
    values[i] = static_cast<float>(std::sin(i * (rank + 1.0) + round));
  }
  return values;
}

inline Bytes bytes_of(const Floats& values) {
  Bytes bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

inline Floats floats_of(const Bytes& bytes) {
  Floats values(kElements);
  REQUIRE(bytes.size() == values.size() * sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

inline Bytes encoded(Dtype dtype, const Floats& values, Floats& residue,
                     const quantize::RoundingSource& source) {
  Bytes blocks(wire::payload_bytes(dtype, kElements));
  quantize::reference::encode(dtype, blocks.data(), values.data(), residue.data(), kElements,
                              quantize::key_of(source));
  return blocks;
}

inline Bytes push_of(Dtype dtype, uint32_t rank, uint32_t round) {
  Floats none(kElements);
  return encoded(dtype, values_of(rank, round), none, {.rank = rank, .round = round});
}

inline void push(Box& box, const JobOptions& job, uint32_t rank, uint32_t round, Dtype dtype,
                 const Bytes& bytes, PacketType type = PacketType::kPush) {
  const uint32_t stride = wire::fragment_bytes_of(dtype, job.fragment_bytes);
  for (uint32_t at = 0; at < bytes.size(); at += stride) {
    Packet packet = box.pull(job, rank, round);
    packet.header.set_type(type);
    packet.header.fragment = static_cast<uint16_t>(at / stride);
    packet.header.dtype_scale = static_cast<uint16_t>(dtype);
    const auto length = std::min<size_t>(stride, bytes.size() - at);
    packet.header.payload_bytes = static_cast<uint16_t>(length);
    packet.payload.assign(bytes.begin() + at, bytes.begin() + ptrdiff_t(at + length));
    box.deliver(packet);
  }
}

// The results that have left, by rank, each whole and of one type; empty if none has.
struct Results {
  std::vector<Bytes> bytes;
  Dtype dtype = Dtype::kF32;
};
inline Results take_results(Box& box, const JobOptions& job) {
  Results results;
  results.bytes.resize(job.workers);
  std::vector<size_t> taken(job.workers);
  for (const Sent& sent : box.take_all()) {
    if (sent.header.type() != PacketType::kResult) continue;
    results.dtype = static_cast<Dtype>(sent.header.dtype_scale & 15);
    const uint32_t stride = wire::fragment_bytes_of(results.dtype, job.fragment_bytes);
    const uint32_t rank = (sent.header.spi & 63) % job.workers;
    Bytes& bytes = results.bytes[rank];
    bytes.resize(wire::payload_bytes(results.dtype, kElements));
    REQUIRE(sent.header.fragment * stride + sent.payload.size() <= bytes.size());
    std::copy(sent.payload.begin(), sent.payload.end(),
              bytes.begin() + sent.header.fragment * stride);
    taken[rank] += sent.payload.size();
  }
  for (uint32_t rank = 0; rank < job.workers; ++rank)
    CHECK(taken[rank] == results.bytes[rank].size());
  return results;
}

// Computes like the box: steps `master` by the ranks' pushes, and moves `weights` there by deltas.
struct Model {
  Dtype dtype;
  Floats weights, master, momentum = Floats(kElements);
  uint32_t steps = 0;

  Bytes next(const JobOptions& job, uint32_t round, const std::vector<Bytes>& pushes) {
    Floats sum(kElements), difference(kElements);
    for (const Bytes& push : pushes) {
      quantize::reference::accumulate(dtype, sum.data(), push.data(), kElements, FLT_MAX, true,
                                      false);
    }
    const optimizer::StepParameters parameters{.learning_rate = job.optimizer.learning_rate,
                                               .weight_decay = 0,
                                               .gradient_scale = 1,
                                               .step = ++steps};
    optimizer::reference::step(job.optimizer.kind,
                               optimizer::step_coefficients(job.optimizer, parameters),
                               master.data(), momentum.data(), sum.data(), kElements);
    for (uint32_t i = 0; i < kElements; ++i) difference[i] = -weights[i];
    const Bytes delta =
        encoded(dtype, master, difference,
                {.seed = quantize::hash_of("job 0"), .rank = quantize::kBoxRank, .round = round});
    quantize::reference::accumulate(dtype, weights.data(), delta.data(), kElements, FLT_MAX, true,
                                    false);
    return delta;
  }
};

// Runs the round of the initial weights. Returns the model of the job after it.
inline Model begin(Box& box, const JobOptions& job) {
  const Floats initial = values_of(0, 0);
  for (const uint32_t rank : {0u, 1u})
    push(box, job, rank, 0, Dtype::kF32, bytes_of(values_of(rank, 0)));
  const Results results = take_results(box, job);
  CHECK(results.dtype == Dtype::kF32);
  for (const Bytes& bytes : results.bytes) CHECK(floats_of(bytes) == initial);
  return {.dtype = job.dtype, .weights = initial, .master = initial};
}

inline Packet pull_as(Box& box, const JobOptions& job, uint32_t rank, uint32_t round, Dtype dtype,
                      uint64_t held_mask = 0) {
  Packet packet = box.pull(job, rank, round, held_mask);
  packet.header.dtype_scale = static_cast<uint16_t>(dtype);
  return packet;
}

}  // namespace pbox::test::engine_deltas_test
