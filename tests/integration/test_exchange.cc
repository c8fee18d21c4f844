// The engines of boxes and the exchanges of workers, as in the product, over a hostile in-process
// network, against an independent oracle. One seed per case; PBOX_EXCHANGE_SEEDS=N runs N seeds
// (the slow test does).
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "pipeline/reduce/reference.h"
#include "tests/integration/hostile_network.h"
#include "tests/support/rack.h"

namespace pbox::exchange_test {
namespace {

using test::hostile;
using test::seeds_after;

using Bytes = std::vector<std::byte>;

struct Case {
  wire::Dtype dtype;
  pipeline::Mode mode;
  pipeline::Reduction reduction;
};

// Small multiples of 1/4. They are exact in every dtype, and so are sums over 8 workers and their
// means.
float value(uint32_t rank, uint32_t round, uint32_t tensor, uint64_t index) {
  return 0.25f * static_cast<float>((index * 7 + rank * 3 + round * 5 + tensor) % 13) - 1.5f;
}

Bytes encode(wire::Dtype dtype, const std::vector<float>& values) {
  Bytes bytes(values.size() * wire::dtype_bytes(dtype));
  reduce::narrow(dtype, bytes.data(), values.data(), values.size());
  return bytes;
}

std::vector<float> decode(wire::Dtype dtype, const Bytes& bytes) {
  std::vector<float> values(bytes.size() / wire::dtype_bytes(dtype));
  reduce::store(dtype, values.data(), bytes.data(), values.size());
  return values;
}

// Sums in rank order, in double: the reference for the box's result.
std::vector<float> oracle_sum(const test::RackOptions& options, uint32_t round, uint32_t tensor) {
  std::vector<float> sums(options.tensors[tensor].elements);
  for (uint64_t index = 0; index < sums.size(); ++index) {
    double sum = 0;
    for (uint32_t rank = 0; rank < options.workers; ++rank)
      sum += value(rank, round, tensor, index);
    if (options.reduction == pipeline::Reduction::kMean) sum /= options.workers;
    sums[index] = static_cast<float>(sum);
  }
  return sums;
}

// buffers[rank][tensor], exchanged in place
using Buffers = std::vector<std::vector<Bytes>>;

void exchange(test::Rack& rack, const test::RackOptions& options, Buffers& buffers) {
  for (uint32_t rank = 0; rank < options.workers; ++rank) {
    for (uint32_t tensor = 0; tensor < options.tensors.size(); ++tensor) {
      std::byte* data = buffers[rank][tensor].data();
      rack.worker(rank).start({.tensor = tensor,
                               .input = data,
                               .output = data,
                               .priority = options.tensors[tensor].priority});
    }
  }
  REQUIRE(rack.run_until_idle());
}

void require_identical(const Buffers& buffers) {
  for (size_t rank = 1; rank < buffers.size(); ++rank) REQUIRE(buffers[rank] == buffers[0]);
}

Buffers gradients(const test::RackOptions& options, uint32_t round) {
  Buffers buffers(options.workers);
  for (uint32_t rank = 0; rank < options.workers; ++rank) {
    for (uint32_t tensor = 0; tensor < options.tensors.size(); ++tensor) {
      std::vector<float> values(options.tensors[tensor].elements);
      for (uint64_t index = 0; index < values.size(); ++index) {
        values[index] = value(rank, round, tensor, index);
      }
      buffers[rank].push_back(encode(options.tensors[tensor].dtype, values));
    }
  }
  return buffers;
}

test::RackOptions rack_of(const Case& test_case, uint64_t seed) {
  test::RackOptions options;
  options.workers = 8;
  options.pipelines = 2;
  options.mode = test_case.mode;
  options.reduction = test_case.reduction;
  options.faults = hostile(seed);
  for (const uint64_t elements : {1ull, 353ull, 8192ull, 20001ull}) {
    worker::TensorSpec tensor;
    tensor.elements = elements;
    tensor.dtype = test_case.dtype;
    tensor.priority = static_cast<int32_t>(elements % 3);
    options.tensors.push_back(tensor);
  }
  return options;
}

}  // namespace

TEST_CASE("every worker receives the exact sum over a network that loses, repeats and reorders") {
  const auto dtype = GENERATE(wire::Dtype::kF32, wire::Dtype::kF16, wire::Dtype::kBf16);
  const auto reduction = GENERATE(pipeline::Reduction::kSum, pipeline::Reduction::kMean);
  const uint64_t seed = GENERATE(range(uint64_t{17}, seeds_after(17)));
  INFO("seed " << seed);
  const auto options = rack_of({dtype, pipeline::Mode::kAggregate, reduction}, seed);
  test::Rack rack(options);
  for (uint32_t round = 0; round < 6; ++round) {
    Buffers buffers = gradients(options, round);
    exchange(rack, options, buffers);
    require_identical(buffers);
    for (uint32_t tensor = 0; tensor < options.tensors.size(); ++tensor) {
      const auto expected = encode(dtype, oracle_sum(options, round, tensor));
      REQUIRE(buffers[0][tensor] == expected);
    }
  }
  // The network really was hostile, and every mechanism had work to do.
  const auto faults = rack.network().counts();
  REQUIRE(faults.lost > 50);
  REQUIRE(faults.duplicated > 50);
  REQUIRE(faults.reordered > 50);
  REQUIRE(rack.worker(0).statistics().retransmitted_fragments > 0);
  REQUIRE(rack.pipeline(0).counters().get(pipeline::Counter::kResultsResent) > 0);
}

TEST_CASE("weights follow the optimizer's oracle over a hostile network") {
  const auto dtype = GENERATE(wire::Dtype::kF32, wire::Dtype::kF16, wire::Dtype::kBf16);
  const uint64_t seed = GENERATE(range(uint64_t{23}, seeds_after(23)));
  INFO("seed " << seed);
  auto options = rack_of({dtype, pipeline::Mode::kOptimize, pipeline::Reduction::kMean}, seed);
  options.optimizer.kind = optimizer::OptimizerKind::kMomentum;
  options.optimizer.learning_rate = 0.125f;
  options.optimizer.momentum = 0.5f;
  options.optimizer.weight_decay = 0;
  test::Rack rack(options);

  Buffers weights = gradients(options, 100);  // differ by rank; rank 0's must be used
  std::vector<std::vector<double>> expected, velocity;
  for (const Bytes& bytes : weights[0]) {
    const auto values = decode(dtype, bytes);
    expected.emplace_back(values.begin(), values.end());
    velocity.emplace_back(values.size(), 0.0);
  }
  exchange(rack, options, weights);
  require_identical(weights);
  for (uint32_t round = 1; round < 6; ++round) {
    Buffers buffers = gradients(options, round);
    exchange(rack, options, buffers);
    require_identical(buffers);
    for (uint32_t tensor = 0; tensor < options.tensors.size(); ++tensor) {
      const auto mean = oracle_sum(options, round, tensor);
      const auto actual = decode(dtype, buffers[0][tensor]);
      const double tolerance = dtype == wire::Dtype::kF32   ? 1e-6
                               : dtype == wire::Dtype::kF16 ? 1e-3
                                                            : 8e-3;
      for (size_t index = 0; index < actual.size(); ++index) {
        velocity[tensor][index] = 0.5 * velocity[tensor][index] + static_cast<double>(mean[index]);
        expected[tensor][index] -= 0.125 * velocity[tensor][index];
        const double scale = std::max(1.0, std::abs(expected[tensor][index]));
        REQUIRE(std::abs(static_cast<double>(actual[index]) - expected[tensor][index]) <=
                tolerance * scale);
      }
    }
  }
}

TEST_CASE("a network that also truncates packets and flips bits corrupts nothing") {
  const uint64_t seed = GENERATE(range(uint64_t{31}, seeds_after(31)));
  INFO("seed " << seed);
  auto options =
      rack_of({wire::Dtype::kF32, pipeline::Mode::kAggregate, pipeline::Reduction::kSum}, seed);
  options.faults.truncation = 0.02;
  options.faults.bit_flip = 0.02;
  test::Rack rack(options);
  for (uint32_t round = 0; round < 4; ++round) {
    Buffers buffers = gradients(options, round);
    exchange(rack, options, buffers);
    require_identical(buffers);
    for (uint32_t tensor = 0; tensor < options.tensors.size(); ++tensor) {
      REQUIRE(buffers[0][tensor] == encode(wire::Dtype::kF32, oracle_sum(options, round, tensor)));
    }
  }
  REQUIRE(rack.network().counts().flipped > 10);
  REQUIRE(rack.pipeline(0).counters().get(pipeline::Counter::kRejectTag) > 0);
}

TEST_CASE("a straggler is waited for without retransmission, and is named") {
  test::RackOptions options;
  options.workers = 3;
  options.tensors.push_back({.name = "t", .elements = 30000});
  test::Rack rack(options);
  Buffers buffers = gradients(options, 0);
  for (const uint32_t rank : {0u, 2u}) {
    std::byte* data = buffers[rank][0].data();
    rack.worker(rank).start({.tensor = 0, .input = data, .output = data});
  }
  for (int count = 0; count < 2000; ++count) rack.step();
  REQUIRE(rack.worker(0).busy(0));
  const auto laggard = rack.worker(0).laggard(0, rack.now_ns());
  REQUIRE(laggard.kind == worker::Laggard::Kind::kRank);
  REQUIRE(laggard.rank == 1);
  REQUIRE(laggard.missing_workers == 1);
  REQUIRE(rack.worker(0).statistics().retransmitted_fragments == 0);

  std::byte* data = buffers[1][0].data();
  rack.worker(1).start({.tensor = 0, .input = data, .output = data});
  REQUIRE(rack.run_until_idle());
  require_identical(buffers);
}

TEST_CASE("workers that begin with different tensors do not wait for each other forever") {
  test::RackOptions options;
  options.workers = 2;
  options.window_bytes = options.chunk_bytes;
  options.tensors.push_back({.name = "first", .elements = 60000});
  options.tensors.push_back({.name = "second", .elements = 60000});
  test::Rack rack(options);
  Buffers buffers = gradients(options, 0);
  for (const uint32_t turn : {0u, 1u}) {
    for (const uint32_t rank : {0u, 1u}) {
      const uint32_t tensor = turn ^ rank;
      std::byte* data = buffers[rank][tensor].data();
      rack.worker(rank).start({.tensor = tensor, .input = data, .output = data});
    }
    for (int count = 0; count < 5; ++count) rack.step();
  }
  REQUIRE(rack.run_until_idle());
  require_identical(buffers);
}

}  // namespace pbox::exchange_test
