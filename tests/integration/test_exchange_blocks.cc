// Compressed tensors between the engines of boxes and the exchanges of workers, as in the product,
// over a hostile in-process network. The expected bits are computed from the definitions.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cfloat>
#include <cmath>
#include <cstring>

#include "base/rng.h"
#include "nic/quantize/reference.h"
#include "tests/integration/hostile_network.h"
#include "tests/support/rack.h"

namespace pbox::exchange_blocks_test {
namespace {

using test::hostile;
using test::seeds_after;
using wire::Compression;
using wire::Dtype;

constexpr uint64_t kElements = 20'000;  // three chunks; the last one ends within a block of q8
constexpr uint32_t kChunkElements = limits::kChunkBytesDefault / sizeof(float);

test::RackOptions rack_of(uint64_t seed, Compression compression, uint32_t workers) {
  test::RackOptions options;
  options.workers = workers;
  options.pipelines = 2;
  options.faults = hostile(seed);
  options.tensors.push_back({.name = "dense", .elements = kElements, .compression = compression});
  options.tensors.push_back({.name = "norm", .elements = 300});
  return options;
}

std::vector<float> gradient_of(uint32_t rank, uint32_t round, uint64_t elements) {
  Rng rng(rank * 1000 + round);
  std::vector<float> gradient(elements);
  for (uint64_t i = 0; i < elements; ++i) {
    const double scale = std::exp2(-static_cast<double>(i / 64 % 20));
    gradient[i] = static_cast<float>((2 * rng.unit() - 1) * scale);
  }
  return gradient;
}

// Computes what ranks and box compute, with the reference functions and the residues of both.
class Model {
 public:
  Model(Dtype dtype, uint32_t workers, pipeline::Reduction reduction)
      : dtype_(dtype), reduction_(reduction), residues_(workers, zeros()), box_residue_(zeros()) {}

  // Returns the result of a round of these gradients.
  std::vector<float> next(const std::vector<std::vector<float>>& gradients) {
    std::vector<float> result(kElements);
    uint32_t chunk = 0;
    for (uint64_t first = 0; first < kElements; first += kChunkElements, ++chunk) {
      const auto count =
          static_cast<uint32_t>(std::min<uint64_t>(kChunkElements, kElements - first));
      std::vector<float> sum(count);
      for (uint32_t rank = 0; rank < gradients.size(); ++rank) {
        const auto blocks =
            encoded(gradients[rank].data() + first, residues_[rank].data() + first, count,
                    {.seed = 0,
                     .tensor = quantize::hash_of("dense"),
                     .first_element = first,
                     .rank = rank,
                     .round = round_});
        quantize::reference::accumulate(dtype_, sum.data(), blocks.data(), count, FLT_MAX, rank > 0,
                                        false);
      }
      if (reduction_ == pipeline::Reduction::kMean) {
        for (float& value : sum) value *= 1.0f / static_cast<float>(gradients.size());
      }
      const auto blocks = encoded(sum.data(), box_residue_.data() + first, count,
                                  {.seed = quantize::hash_of(""),
                                   .tensor = chunk,
                                   .rank = quantize::kBoxRank,
                                   .round = round_});
      quantize::reference::accumulate(dtype_, result.data() + first, blocks.data(), count, FLT_MAX,
                                      false, false);
    }
    ++round_;
    return result;
  }

 private:
  static std::vector<float> zeros() { return std::vector<float>(kElements, 0.0f); }

  std::vector<std::byte> encoded(const float* values, float* residue, uint32_t count,
                                 const quantize::RoundingSource& source) const {
    std::vector<std::byte> blocks(wire::payload_bytes(dtype_, count));
    quantize::reference::encode(dtype_, blocks.data(), values, residue, count,
                                quantize::key_of(source));
    return blocks;
  }

  Dtype dtype_;
  pipeline::Reduction reduction_;
  uint32_t round_ = 0;
  std::vector<std::vector<float>> residues_;
  std::vector<float> box_residue_;
};

// A rank's buffers. A result goes to another buffer in odd rounds, and over the input in even ones.
struct Rank {
  std::vector<float> input, output;
  std::vector<float> norm = std::vector<float>(300, 0.0f);

  void start(worker::Exchange& exchange, bool in_place) {
    const auto bytes = [](std::vector<float>& values) {
      return reinterpret_cast<std::byte*>(values.data());
    };
    output.assign(kElements, 0.0f);
    exchange.start(
        {.tensor = 0, .input = bytes(input), .output = in_place ? bytes(input) : bytes(output)});
    std::fill(norm.begin(), norm.end(), 1.5f);
    exchange.start({.tensor = 1, .input = bytes(norm), .output = bytes(norm)});
  }
  const std::vector<float>& result(bool in_place) const { return in_place ? input : output; }
};

bool same_bits(const std::vector<float>& one, const std::vector<float>& other) {
  return std::memcmp(one.data(), other.data(), one.size() * sizeof(float)) == 0;
}

// Returns how many fragments the ranks have pushed again.
uint64_t resent(test::Rack& rack, uint32_t workers) {
  uint64_t count = 0;
  for (uint32_t rank = 0; rank < workers; ++rank) {
    count += rack.worker(rank).statistics().retransmitted_fragments;
  }
  return count;
}

}  // namespace

TEST_CASE("compressed results are those of the definition bit for bit over a hostile network") {
  const auto compression = GENERATE(Compression::kQ8, Compression::kQ4);
  const auto reduction = GENERATE(pipeline::Reduction::kSum, pipeline::Reduction::kMean);
  const uint64_t seed = GENERATE(range(uint64_t{71}, seeds_after(71)));
  INFO("seed " << seed << " " << to_string(compression));
  constexpr uint32_t kWorkers = 2;  // so that the order of arrival does not change sums
  auto options = rack_of(seed, compression, kWorkers);
  options.reduction = reduction;
  options.fragment_bytes = 512;  // more packets to lose
  test::Rack rack(options);
  Model model(wire::payload_dtype(compression), kWorkers, reduction);
  std::vector<Rank> ranks(kWorkers);
  for (uint32_t round = 0; round < 12; ++round) {
    const bool in_place = round % 2 == 0;
    std::vector<std::vector<float>> gradients;
    for (uint32_t rank = 0; rank < kWorkers; ++rank) {
      gradients.push_back(gradient_of(rank, round, kElements));
      ranks[rank].input = gradients[rank];
      ranks[rank].start(rack.worker(rank), in_place);
    }
    REQUIRE(rack.run_until_idle());
    const auto expected = model.next(gradients);
    for (const Rank& rank : ranks) {
      REQUIRE(same_bits(rank.result(in_place), expected));
      CHECK(rank.norm[299] == (reduction == pipeline::Reduction::kSum ? 3.0f : 1.5f));
      CHECK((in_place || same_bits(rank.input, gradients[size_t(&rank - ranks.data())])));
    }
  }
  CHECK(resent(rack, kWorkers) > 0);
}

TEST_CASE("all ranks get the same compressed result, and over rounds it is the gradients' sum") {
  const auto compression = GENERATE(Compression::kQ8, Compression::kQ4);
  const uint64_t seed = GENERATE(range(uint64_t{91}, seeds_after(91)));
  INFO("seed " << seed << " " << to_string(compression));
  constexpr uint32_t kWorkers = 5;
  constexpr uint32_t kRounds = 40;
  test::Rack rack(rack_of(seed, compression, kWorkers));
  std::vector<Rank> ranks(kWorkers);
  std::vector<double> exact(kElements), received(kElements);
  for (uint32_t round = 0; round < kRounds; ++round) {
    for (uint32_t rank = 0; rank < kWorkers; ++rank) {
      ranks[rank].input = gradient_of(rank, round, kElements);
      for (uint64_t i = 0; i < kElements; ++i) exact[i] += double{ranks[rank].input[i]};
      ranks[rank].start(rack.worker(rank), true);
    }
    REQUIRE(rack.run_until_idle());
    for (const Rank& rank : ranks) REQUIRE(same_bits(rank.input, ranks[0].input));
    for (uint64_t i = 0; i < kElements; ++i) received[i] += double{ranks[0].input[i]};
  }
  // The residues of the ranks and of the box hold the difference. Each is less than a step.
  const double step = compression == Compression::kQ8 ? 1.0 / 127 : 1.0 / 4;
  for (uint64_t i = 0; i < kElements; ++i) {
    const double magnitude = std::exp2(-static_cast<double>(i / 64 % 20));
    // A block lies within a run of 64 values of equal magnitude. The sum is at most kWorkers times
    // as large as a gradient.
    REQUIRE(std::fabs(received[i] - exact[i]) <= 2 * (kWorkers + 2 * kWorkers) * step * magnitude);
  }
}

TEST_CASE("compressed tensors take a quarter or an eighth of the bytes, both ways") {
  for (const auto compression : {Compression::kQ8, Compression::kQ4}) {
    auto options = rack_of(1, compression, 2);
    options.faults = {};
    test::Rack rack(options);
    std::vector<Rank> ranks(2);
    for (uint32_t rank = 0; rank < 2; ++rank) {
      ranks[rank].input = gradient_of(rank, 0, kElements);
      ranks[rank].start(rack.worker(rank), true);
    }
    REQUIRE(rack.run_until_idle());
    const Dtype dtype = wire::payload_dtype(compression);
    const uint64_t chunks = 2 * wire::payload_bytes(dtype, kChunkElements) +
                            wire::payload_bytes(dtype, kElements - 2 * kChunkElements);
    for (uint32_t rank = 0; rank < 2; ++rank) {
      const auto statistics = rack.worker(rank).statistics();
      CHECK(statistics.bytes_pushed == chunks + 300 * sizeof(float));
      CHECK(statistics.bytes_pulled == chunks + 300 * sizeof(float));
    }
  }
}

}  // namespace pbox::exchange_blocks_test
