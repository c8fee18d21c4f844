// Gradients many of whose fragments are zero, over a hostile in-process network: the bits are those
// of a rack that sends zeros as they are.
#include <catch2/catch.hpp>
#include <cstring>

#include "base/rng.h"
#include "pipeline/reduce/reference.h"
#include "tests/integration/hostile_network.h"
#include "tests/support/rack.h"

namespace pbox::exchange_zeros_test {
namespace {

using test::hostile;
using test::seeds_after;

using Bytes = std::vector<std::byte>;

constexpr uint32_t kRounds = 6;

test::RackOptions rack_of(wire::Dtype dtype, pipeline::Mode mode, uint64_t seed) {
  test::RackOptions options;
  options.workers = 4;
  options.pipelines = 2;
  options.mode = mode;
  options.reduction = pipeline::Reduction::kMean;
  options.optimizer.kind = optimizer::OptimizerKind::kMomentum;
  options.faults = hostile(seed);
  for (const uint64_t elements : {353ull, 8192ull, 20001ull}) {
    options.tensors.push_back({.name = "t", .elements = elements, .dtype = dtype});
  }
  return options;
}

// Returns small whole numbers, whose sums are exact in any order. In even rounds the same fragments
// are zero on all ranks. In odd rounds each rank has other fragments that are zero.
Bytes gradient_of(const worker::TensorSpec& tensor, uint32_t rank, uint32_t round) {
  const uint32_t element_bytes = wire::dtype_bytes(tensor.dtype);
  const uint64_t fragment = limits::kFragmentBytesEthernet / element_bytes;
  const uint64_t chunk = limits::kChunkBytesDefault / element_bytes;
  std::vector<float> values(tensor.elements);
  for (uint64_t index = 0; index < values.size(); ++index) {
    const uint64_t number = index / chunk * 64 + index % chunk / fragment;
    const uint64_t draw = Rng(number * 100 + round + (round % 2) * 10 * rank).next();
    if (draw % 4 == 0) values[index] = static_cast<float>((index * 7 + rank) % 5) - 2;
  }
  Bytes bytes(values.size() * element_bytes);
  reduce::reference::narrow(tensor.dtype, bytes.data(), values.data(), values.size());
  return bytes;
}

// Returns the result of a round, which must be the same on all ranks.
std::vector<Bytes> exchange(test::Rack& rack, const test::RackOptions& options, uint32_t round) {
  std::vector<std::vector<Bytes>> results(options.workers);
  for (uint32_t rank = 0; rank < options.workers; ++rank) {
    for (const worker::TensorSpec& tensor : options.tensors) {
      results[rank].push_back(gradient_of(tensor, rank, round));
    }
    for (uint32_t tensor = 0; tensor < options.tensors.size(); ++tensor) {
      std::byte* data = results[rank][tensor].data();
      rack.worker(rank).start({.tensor = tensor, .input = data, .output = data});
    }
  }
  REQUIRE(rack.run_until_idle());
  for (const auto& one : results) REQUIRE(one == results[0]);
  return results[0];
}

}  // namespace

TEST_CASE("results with zeros named are those with zeros sent, over a hostile network") {
  const auto dtype = GENERATE(wire::Dtype::kF32, wire::Dtype::kF16, wire::Dtype::kBf16);
  const auto mode = GENERATE(pipeline::Mode::kAggregate, pipeline::Mode::kOptimize);
  const uint64_t seed = GENERATE(range(uint64_t{31}, seeds_after(31)));
  INFO("seed " << seed);
  auto options = rack_of(dtype, mode, seed);
  test::Rack sending(options);
  options.takes_zeros = true;
  test::Rack naming(options);
  for (uint32_t round = 0; round < kRounds; ++round) {
    const auto expected = exchange(sending, options, round);
    REQUIRE(exchange(naming, options, round) == expected);
  }
  uint64_t named = 0, results = 0;
  for (uint32_t pipeline = 0; pipeline < options.pipelines; ++pipeline) {
    const auto& counters = naming.pipeline(pipeline).counters();
    named += counters.get(pipeline::Counter::kZeroFragments);
    results += counters.get(pipeline::Counter::kZeroResults);
    CHECK(sending.pipeline(pipeline).counters().get(pipeline::Counter::kZeroFragments) == 0);
  }
  uint64_t not_sent = 0, bytes = 0, bytes_of_all = 0;
  for (uint32_t rank = 0; rank < options.workers; ++rank) {
    not_sent += naming.worker(rank).statistics().zero_fragments;
    bytes += naming.worker(rank).statistics().bytes_pushed;
    bytes_of_all += sending.worker(rank).statistics().bytes_pushed;
    CHECK(sending.worker(rank).statistics().zero_fragments == 0);
  }
  CHECK(named == not_sent);
  CHECK(bytes < bytes_of_all / 2);
  CHECK((results > 0) == (mode == pipeline::Mode::kAggregate));
  CHECK(naming.network().counts().lost > 20);
}

}  // namespace pbox::exchange_zeros_test
