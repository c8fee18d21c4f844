#include <catch2/catch.hpp>

#include "tests/unit/pipeline/box.h"

namespace pbox::test {

using optimizer::OptimizerKind;

TEST_CASE("a shard takes exactly the memory that its footprint says, to the cache line") {
  for (const auto dtype : {wire::Dtype::kF32, wire::Dtype::kF16, wire::Dtype::kBf16,
                           wire::Dtype::kQ8, wire::Dtype::kQ4}) {
    for (const auto kind : {OptimizerKind::kNone, OptimizerKind::kSgd, OptimizerKind::kMomentum,
                            OptimizerKind::kAdamW}) {
      if (kind != OptimizerKind::kNone && wire::is_in_blocks(dtype)) continue;
      for (const uint32_t workers : {1u, 3u, 9u}) {
        for (const uint32_t elements : {1u, 17u, 768u}) {
          JobOptions options;
          options.dtype = dtype;
          options.workers = workers;
          options.chunk_elements = elements;
          options.chunks = 3;
          options.optimizer.kind = kind;
          if (kind != OptimizerKind::kNone) options.mode = pipeline::Mode::kOptimize;
          for (const auto numerics : {wire::Numerics::kFast, wire::Numerics::kOrdered}) {
            options.numerics = numerics;
            const auto spec = spec_of(options);
            const auto shard = pipeline::JobShard::create(spec);
            REQUIRE(shard.ok());
            REQUIRE(align_up((*shard)->arena().taken(), kCacheLineBytes) ==
                    pipeline::shard_footprint(spec));
          }
        }
      }
    }
  }
}

TEST_CASE("a shard of any consistency model takes exactly its footprint") {
  for (uint32_t model = 1; model < static_cast<uint32_t>(wire::SyncModel::kAdaptive); ++model) {
    for (const auto dtype : {wire::Dtype::kF32, wire::Dtype::kBf16}) {
      for (const auto kind : {OptimizerKind::kSgd, OptimizerKind::kAdam}) {
        for (const uint32_t workers : {1u, 9u}) {
          JobOptions options;
          options.dtype = dtype;
          options.workers = workers;
          options.chunks = 3;
          options.mode = pipeline::Mode::kOptimize;
          options.optimizer.kind = kind;
          options.sync = {.model = static_cast<wire::SyncModel>(model), .quorum = 1};
          auto spec = spec_of(options);
          for (const bool partial : {false, true}) {
            spec.partial = partial;
            const auto shard = pipeline::JobShard::create(spec);
            REQUIRE(shard.ok());
            REQUIRE(align_up((*shard)->arena().taken(), kCacheLineBytes) ==
                    pipeline::shard_footprint(spec));
          }
        }
      }
    }
  }
}

TEST_CASE("a shard finds its own chunks and no others") {
  JobOptions options;
  options.chunks = 3;
  auto spec = spec_of(options);
  spec.job_chunk_count = 100;
  spec.chunks[0].chunk = 7;
  spec.chunks[1].chunk = 99;
  spec.chunks[2].chunk = 0;
  const auto shard = pipeline::JobShard::create(spec);
  REQUIRE(shard.ok());
  for (uint32_t id = 0; id < 300; ++id) {
    const pipeline::Chunk* chunk = (*shard)->find(id);
    REQUIRE((chunk != nullptr) == (id == 7 || id == 99 || id == 0));
    if (chunk != nullptr) REQUIRE(chunk->id == id);
  }
  CHECK((*shard)->find(UINT32_MAX) == nullptr);
}

TEST_CASE("no two arrays of a shard overlap") {
  JobOptions options;
  options.chunks = 2;
  options.workers = 5;
  Box box;
  pipeline::JobShard& shard = box.admit(options);
  std::vector<std::pair<const std::byte*, size_t>> ranges;
  for (pipeline::Chunk& chunk : shard.chunks()) {
    ranges.emplace_back(reinterpret_cast<std::byte*>(chunk.claimed), 5 * sizeof(uint64_t));
    for (float* sum : chunk.accumulator) {
      ranges.emplace_back(reinterpret_cast<std::byte*>(sum), 768 * sizeof(float));
    }
  }
  std::sort(ranges.begin(), ranges.end());
  for (size_t index = 1; index < ranges.size(); ++index) {
    REQUIRE(ranges[index - 1].first + ranges[index - 1].second <= ranges[index].first);
  }
}

}  // namespace pbox::test
