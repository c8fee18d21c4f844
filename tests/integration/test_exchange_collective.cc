// Collectives over a hostile in-process network: the engines of a box, the exchanges and the
// operations of its workers, against an independent oracle. PBOX_EXCHANGE_SEEDS as in
// test_exchange.cc.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>

#include "nic/wire/half.h"
#include "tests/integration/hostile_network.h"
#include "tests/support/rack.h"
#include "worker/collective/call_text.h"
#include "worker/collective/collectives.h"

namespace pbox::exchange_collective_test {
namespace {

using test::seeds_after;

using Bytes = std::vector<std::byte>;
using wire::Combine;
using wire::Dtype;
using wire::Verb;
using worker::CollectiveCall;

constexpr Dtype kDtypes[] = {Dtype::kF32, Dtype::kF16, Dtype::kBf16, Dtype::kI32,
                             Dtype::kI64, Dtype::kU8,  Dtype::kI8,   Dtype::kF64};

// A rack whose workers call collectives. Buffers belong to the test.
class CollectiveRack {
 public:
  explicit CollectiveRack(const test::RackOptions& options) : rack_(options) {
    for (uint32_t rank = 0; rank < options.workers; ++rank) {
      ranks_.emplace_back(
          worker::Collectives::Options{.rank = rank,
                                       .world_size = options.workers,
                                       .chunk_bytes = options.chunk_bytes,
                                       .slots = static_cast<uint32_t>(options.tensors.size()),
                                       .sends_to_owner_alone = true});
    }
  }

  worker::Collectives& rank(uint32_t rank) { return ranks_[rank]; }
  test::Rack& rack() { return rack_; }
  void call(uint32_t rank, const CollectiveCall& call, const Bytes& input, Bytes& output) {
    const auto started = ranks_[rank].start(
        {.call = call, .input = input.data(), .output = output.empty() ? nullptr : output.data()});
    REQUIRE(started.ok());
  }
  std::string operation_at(uint32_t rank, uint32_t slot) {
    const worker::Laggard laggard = rack_.worker(rank).laggard(slot, rack_.now_ns());
    return laggard.call == nullptr ? "" : to_text(*laggard.call);
  }
  void step() {
    for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
      std::vector<worker::Operation> ready;
      ranks_[rank].take_ready(ready);
      for (const auto& operation : ready) rack_.worker(rank).start(operation);
    }
    rack_.step();
    for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
      for (const uint32_t slot : rack_.worker(rank).take_completed()) ranks_[rank].complete(slot);
    }
  }
  bool run() {
    for (int steps = 0; steps < 2'000'000; ++steps) {
      const bool is_done = std::none_of(ranks_.begin(), ranks_.end(),
                                        [](const auto& one) { return one.has_pending(); });
      if (is_done) return true;
      step();
    }
    return false;
  }

 private:
  test::Rack rack_;
  std::vector<worker::Collectives> ranks_;
};

test::RackOptions rack_of(uint32_t workers, uint64_t seed, uint32_t slots) {
  test::RackOptions options;
  options.workers = workers;
  options.pipelines = 2;
  options.is_collective = true;
  options.chunk_bytes = 8192;
  options.tensors =
      worker::Collectives::slots(uint64_t{slots} * options.chunk_bytes, options.chunk_bytes);
  options.faults = {.seed = seed,
                    .loss = 0.05,
                    .duplication = 0.05,
                    .reordering = 0.2,
                    .delay_ns = 20'000,
                    .delay_max_ns = 30'000'000};
  return options;
}

// Whole numbers from 0 to 12: exact in every type, as are their sums over 4 ranks.
int value_of(uint32_t rank, uint64_t operation, uint64_t index) {
  return static_cast<int>((index * 7 + rank * 3 + operation * 5) % 13);
}

template <typename T>
void put(Bytes& bytes, size_t index, T value) {
  std::memcpy(bytes.data() + index * sizeof(T), &value, sizeof(T));
}

void put_value(Dtype dtype, Bytes& bytes, size_t index, double value) {
  switch (dtype) {
    case Dtype::kF32: return put(bytes, index, static_cast<float>(value));
    case Dtype::kF16: return put(bytes, index, wire::narrow_f16(static_cast<float>(value)));
    case Dtype::kBf16: return put(bytes, index, wire::narrow_bf16(static_cast<float>(value)));
    case Dtype::kI32: return put(bytes, index, static_cast<int32_t>(value));
    case Dtype::kI64: return put(bytes, index, static_cast<int64_t>(value));
    case Dtype::kU8: return put(bytes, index, static_cast<uint8_t>(value));
    case Dtype::kI8: return put(bytes, index, static_cast<int8_t>(value));
    case Dtype::kF64: return put(bytes, index, value);
    case Dtype::kQ8:
    case Dtype::kQ4: break;  // slots have no blocks
  }
}

double combined(Combine combine, uint32_t ranks, uint64_t operation, uint64_t index) {
  double result = value_of(0, operation, index);
  for (uint32_t rank = 1; rank < ranks; ++rank) {
    const double value = value_of(rank, operation, index);
    if (combine == Combine::kMin) result = std::min(result, value);
    if (combine == Combine::kMax) result = std::max(result, value);
    if (combine == Combine::kSum || combine == Combine::kMean) result += value;
  }
  return combine == Combine::kMean ? result / ranks : result;
}

// An operation of every rank: its buffers, and the oracle's results.
struct Trial {
  CollectiveCall call;
  std::vector<Bytes> inputs, outputs, expected;
};

Bytes pushed(const CollectiveCall& call, uint32_t rank, uint64_t elements) {
  Bytes bytes(elements * wire::dtype_bytes(call.dtype));
  for (size_t index = 0; index < elements; ++index) {
    put_value(call.dtype, bytes, index, value_of(rank, call.number, index));
  }
  return bytes;
}

Trial trial_of(const CollectiveCall& call, uint32_t ranks) {
  const uint64_t wide = call.count * ranks;
  const uint64_t bytes = wire::dtype_bytes(call.dtype);
  Trial trial{.call = call, .inputs = {}, .outputs = {}, .expected = {}};
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    const bool scatters = call.verb == Verb::kReduceScatter;
    const uint64_t outputs = call.verb == Verb::kAllGather ? wide : call.count;
    trial.inputs.push_back(pushed(call, rank, scatters ? wide : call.count));
    Bytes expected(outputs * bytes);
    for (uint64_t index = 0; index < outputs; ++index) {
      double value = 0;
      switch (call.verb) {
        case Verb::kAllReduce: value = combined(call.combine, ranks, call.number, index); break;
        case Verb::kReduceScatter:
          value = combined(call.combine, ranks, call.number, rank * call.count + index);
          break;
        case Verb::kAllGather:
          value =
              value_of(static_cast<uint32_t>(index / call.count), call.number, index % call.count);
          break;
        default: value = value_of(call.root, call.number, index);
      }
      put_value(call.dtype, expected, index, value);
    }
    trial.outputs.emplace_back(expected.size(), std::byte{0x5a});
    trial.expected.push_back(std::move(expected));
  }
  return trial;
}

std::vector<CollectiveCall> every_call(uint32_t ranks, uint64_t first_number) {
  std::vector<CollectiveCall> calls;
  const auto add = [&](Verb verb, Combine combine, Dtype dtype, uint64_t count) {
    calls.push_back({.number = first_number + calls.size(),
                     .verb = verb,
                     .combine = combine,
                     .dtype = dtype,
                     .count = count,
                     .root = static_cast<uint32_t>(calls.size() % ranks)});
  };
  // From one element to more than all slots hold. 4096 elements of bf16 fill one slot.
  const uint64_t counts[] = {1, 353, 4096, 20'001};
  for (const Dtype dtype : kDtypes) {
    const uint64_t count = counts[static_cast<size_t>(dtype) % 4];
    for (const Combine combine : {Combine::kSum, Combine::kMean, Combine::kMin, Combine::kMax}) {
      if (combine == Combine::kMean && !wire::is_floating_point(dtype)) continue;
      add(Verb::kAllReduce, combine, dtype, count);
      add(Verb::kReduceScatter, combine, dtype, count);
    }
    add(Verb::kAllGather, Combine::kCopy, dtype, count);
    add(Verb::kBroadcast, Combine::kCopy, dtype, count);
    add(Verb::kAllReduce, Combine::kSum, dtype, 0);
    add(Verb::kBarrier, Combine::kCopy, Dtype::kU8, 0);
  }
  return calls;
}

}  // namespace

TEST_CASE("every collective has its result over a network that loses, repeats and reorders") {
  const uint32_t ranks = GENERATE(1u, 2u, 3u, 4u);
  const uint64_t seed = GENERATE(range(uint64_t{41}, seeds_after(41)));
  INFO(ranks << " ranks, seed " << seed);
  CollectiveRack rack(rack_of(ranks, seed, 16));
  std::vector<Trial> trials;
  for (const CollectiveCall& call : every_call(ranks, 0)) trials.push_back(trial_of(call, ranks));
  // Ranks call at different times, but in one order.
  std::vector<size_t> next(ranks, 0);
  Rng rng(seed);
  while (std::any_of(next.begin(), next.end(), [&](size_t at) { return at < trials.size(); })) {
    const auto rank = static_cast<uint32_t>(rng.below(ranks));
    for (uint64_t burst = rng.below(4); burst > 0 && next[rank] < trials.size(); --burst) {
      Trial& trial = trials[next[rank]++];
      rack.call(rank, trial.call, trial.inputs[rank], trial.outputs[rank]);
    }
    rack.step();
  }
  REQUIRE(rack.run());
  for (const Trial& trial : trials) {
    INFO(to_text(trial.call));
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      INFO("rank " << rank);
      const bool keeps_own = trial.call.verb == Verb::kBroadcast && trial.call.root == rank;
      if (trial.call.verb == Verb::kBarrier) continue;
      CHECK(trial.outputs[rank] == (keeps_own ? trial.inputs[rank] : trial.expected[rank]));
    }
  }
  REQUIRE(rack.rack().network().counts().lost > 50);
  for (uint32_t pipeline = 0; pipeline < 2; ++pipeline) {
    const auto& counters = rack.rack().pipeline(pipeline).counters();
    CHECK(counters.get(pipeline::Counter::kRejectLength) == 0);
    CHECK(counters.get(pipeline::Counter::kRejectDtype) == 0);
    CHECK(counters.get(pipeline::Counter::kRejectShape) == 0);
    CHECK_FALSE(rack.rack().shard(pipeline).mismatch());
  }
}

TEST_CASE("a buffer may be input and output at once") {
  constexpr uint32_t kRanks = 3;
  CollectiveRack rack(rack_of(kRanks, 5, 16));
  const auto all_reduce = trial_of({.number = 0,
                                    .verb = Verb::kAllReduce,
                                    .combine = Combine::kSum,
                                    .dtype = Dtype::kF32,
                                    .count = 9001},
                                   kRanks);
  const auto gather = trial_of(
      {.number = 1, .verb = Verb::kAllGather, .dtype = Dtype::kI64, .count = 3001}, kRanks);
  const auto scatter = trial_of({.number = 2,
                                 .verb = Verb::kReduceScatter,
                                 .combine = Combine::kMax,
                                 .dtype = Dtype::kI32,
                                 .count = 5003},
                                kRanks);
  std::vector<Bytes> reduced = all_reduce.inputs, gathered = gather.outputs,
                     scattered = scatter.inputs;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    REQUIRE(rack.rank(rank)
                .start({.call = all_reduce.call,
                        .input = reduced[rank].data(),
                        .output = reduced[rank].data()})
                .ok());
    std::byte* own = gathered[rank].data() + rank * gather.inputs[rank].size();
    std::copy(gather.inputs[rank].begin(), gather.inputs[rank].end(), own);
    REQUIRE(rack.rank(rank)
                .start({.call = gather.call, .input = own, .output = gathered[rank].data()})
                .ok());
    std::byte* segment = scattered[rank].data() + rank * scatter.expected[rank].size();
    REQUIRE(rack.rank(rank)
                .start({.call = scatter.call, .input = scattered[rank].data(), .output = segment})
                .ok());
  }
  REQUIRE(rack.run());
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    CHECK(reduced[rank] == all_reduce.expected[rank]);
    CHECK(gathered[rank] == gather.expected[rank]);
    const auto segment =
        scattered[rank].begin() + static_cast<ptrdiff_t>(rank * scatter.expected[rank].size());
    CHECK(Bytes(segment, segment + static_cast<ptrdiff_t>(scatter.expected[rank].size())) ==
          scatter.expected[rank]);
  }
}

TEST_CASE("the result of a reduce_scatter goes to its owner alone") {
  constexpr uint32_t kRanks = 4;
  auto options = rack_of(kRanks, 7, 16);
  options.faults = {};
  CollectiveRack rack(options);
  Trial trial = trial_of({.verb = Verb::kReduceScatter,
                          .combine = Combine::kSum,
                          .dtype = Dtype::kF32,
                          .count = 40'000},
                         kRanks);
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    rack.call(rank, trial.call, trial.inputs[rank], trial.outputs[rank]);
  }
  REQUIRE(rack.run());
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    CHECK(trial.outputs[rank] == trial.expected[rank]);
    const auto statistics = rack.rack().worker(rank).statistics();
    CHECK(statistics.bytes_pushed == trial.inputs[rank].size());
    CHECK(statistics.bytes_pulled == trial.outputs[rank].size());
  }
}

TEST_CASE("ranks that disagree about an operation are found, and nothing has a result") {
  struct Difference {
    const char* what;
    CollectiveCall other;
  };
  const CollectiveCall call{
      .verb = Verb::kAllReduce, .combine = Combine::kSum, .dtype = Dtype::kF32, .count = 1000};
  const auto changed = [&](auto change) {
    CollectiveCall other = call;
    change(other);
    return other;
  };
  const auto difference = GENERATE_COPY(values<Difference>({
      {"count", changed([](CollectiveCall& c) { c.count = 1001; })},
      {"far larger count", changed([](CollectiveCall& c) { c.count = 9000; })},
      {"no elements", changed([](CollectiveCall& c) { c.count = 0; })},
      {"dtype of the same size", changed([](CollectiveCall& c) { c.dtype = Dtype::kI32; })},
      {"dtype", changed([](CollectiveCall& c) { c.dtype = Dtype::kBf16; })},
      {"op", changed([](CollectiveCall& c) { c.combine = Combine::kMax; })},
      {"verb", changed([](CollectiveCall& c) { c.verb = Verb::kReduceScatter; })},
      {"barrier", changed([](CollectiveCall& c) { c.verb = Verb::kBarrier; })},
  }));
  INFO(difference.what);
  CollectiveRack rack(rack_of(3, 3, 16));
  Bytes input(9000 * 4 * 3), output(9000 * 4 * 3, std::byte{1});
  const Bytes untouched = output;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    rack.call(rank, rank == 1 ? difference.other : call, input, output);
  }
  std::optional<pipeline::ShapeMismatch> found;
  for (int steps = 0; steps < 100'000 && !found; ++steps) {
    rack.step();
    for (uint32_t index = 0; index < 2 && !found; ++index) {
      found = rack.rack().shard(index).mismatch();
    }
  }
  REQUIRE(found.has_value());
  CHECK((found->first_rank == 1) != (found->other_rank == 1));
  CHECK(rack.operation_at(0, found->chunk) != "");
  CHECK(output == untouched);
}

TEST_CASE("a rank that skips an operation is found at the next one") {
  CollectiveRack rack(rack_of(2, 9, 16));
  Bytes input(4000), output(4000);
  const CollectiveCall first{
      .verb = Verb::kAllReduce, .combine = Combine::kSum, .dtype = Dtype::kF32, .count = 1000};
  const CollectiveCall second{
      .verb = Verb::kBroadcast, .dtype = Dtype::kF32, .count = 10, .root = 1};
  rack.call(0, first, input, output);
  rack.call(0, second, input, output);
  rack.call(1, second, input, output);
  for (int steps = 0; steps < 100'000 && !rack.rack().shard(0).mismatch(); ++steps) rack.step();
  const auto found = rack.rack().shard(0).mismatch();
  REQUIRE(found.has_value());
  CHECK(rack.operation_at(0, found->chunk) == "operation 0 (all_reduce of 1000 f32, sum)");
  CHECK(rack.operation_at(1, found->chunk) == "operation 0 (broadcast of 10 f32 from rank 1)");
}

}  // namespace pbox::exchange_collective_test
