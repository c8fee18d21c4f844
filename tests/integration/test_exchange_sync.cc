// The engines of boxes and the exchanges of workers, as in the product, under every consistency
// model, over a hostile in-process network, with ranks that are slow at random. Each rank's update
// adds its own power of 32 to every weight. A weight's digits in base 32 therefore tell how many
// iterations of each rank it contains, so every element that a rank reads can be checked. One seed
// per case; PBOX_EXCHANGE_SEEDS=N runs N seeds.
#include <catch2/catch.hpp>
#include <cstring>

#include "base/rng.h"
#include "pipeline/reduce/reference.h"
#include "tests/integration/hostile_network.h"
#include "tests/support/rack.h"

namespace pbox::exchange_sync_test {
namespace {

using test::seeds_after;

using wire::Reads;
using wire::Release;
using wire::SyncModel;
using wire::SyncSpec;

constexpr uint32_t kIterations = 24;  // below 32, because it must fit one digit of a weight
constexpr uint32_t kRanksMax = 4;
constexpr uint64_t kComputeNs = 2'000'000;  // average duration of one iteration

struct Sync {
  const char* name;
  SyncSpec spec;
};

const Sync kSyncs[] = {
    {"bsp", {}},
    {"asp", {.model = SyncModel::kAsp}},
    {"ssp 0", {.model = SyncModel::kSsp, .staleness = 0}},
    {"ssp 3", {.model = SyncModel::kSsp, .staleness = 3}},
    {"ssp 3 lazy", {.model = SyncModel::kSsp, .staleness = 3, .release = Release::kLazy}},
    {"ssp 0 cached", {.model = SyncModel::kSsp, .staleness = 0, .reads = Reads::kCached}},
    {"ssp 3 cached", {.model = SyncModel::kSsp, .staleness = 3, .reads = Reads::kCached}},
    {"essp 0", {.model = SyncModel::kEssp, .staleness = 0}},
    {"essp 1", {.model = SyncModel::kEssp, .staleness = 1}},
    {"essp 4", {.model = SyncModel::kEssp, .staleness = 4}},
    {"ssp 2 answered", {.model = SyncModel::kSsp, .staleness = 2, .reads = Reads::kAnswered}},
    {"essp 0 answered", {.model = SyncModel::kEssp, .staleness = 0, .reads = Reads::kAnswered}},
    {"essp 3 answered", {.model = SyncModel::kEssp, .staleness = 3, .reads = Reads::kAnswered}},
    {"pssp", {.model = SyncModel::kPssp, .staleness = 1, .probability = 0.5f}},
    {"pssp lazy",
     {.model = SyncModel::kPssp, .staleness = 2, .probability = 0.1f, .release = Release::kLazy}},
    {"dpssp", {.model = SyncModel::kDpssp, .staleness = 2, .probability = 1}},
    {"drop 1", {.model = SyncModel::kDrop, .quorum = 1}},
    {"drop 2", {.model = SyncModel::kDrop, .quorum = 2}},
};

// Returns whether the model bounds how far behind a rank may be in what another rank reads.
bool has_bound(const SyncSpec& spec) {
  return spec.model == SyncModel::kBsp || spec.model == SyncModel::kSsp ||
         spec.model == SyncModel::kEssp;
}

uint32_t digit(float weight, uint32_t rank) {
  return static_cast<uint32_t>(weight) >> (5 * rank) & 31u;
}

// Ranks that compute for random times, sometimes much longer, and exchange all tensors.
class Training {
 public:
  Training(const test::RackOptions& options, uint64_t seed)
      : options_(options), rack_(options), rng_(seed) {
    for (uint32_t rank = 0; rank < options.workers; ++rank) {
      Rank& state = ranks_.emplace_back();
      state.slowness = rank + 1 == options.workers ? 4 : 1;
      for (const auto& tensor : options.tensors) {
        state.values.emplace_back(tensor.elements, 0.0f);
        state.counts.emplace_back(tensor.elements * kRanksMax, 0u);
      }
      start(rank);
    }
  }

  void run() {
    for (uint64_t steps = 0; !is_done(); ++steps) {
      REQUIRE(steps < 4'000'000);
      uint64_t next_ns = UINT64_MAX;
      for (uint32_t rank = 0; rank < options_.workers; ++rank) {
        advance(rank);
        if (!ranks_[rank].exchanges) next_ns = std::min(next_ns, ranks_[rank].ready_ns);
      }
      rack_.step(next_ns);
    }
  }

  // Checks the weights that the box holds at the end.
  void check_weights(bool is_exact) {
    for (uint32_t index = 0; index < options_.pipelines; ++index) {
      for (const pipeline::Chunk& chunk : rack_.shard(index).chunks()) {
        for (uint32_t at = 0; at < chunk.elements; ++at) check_weight(chunk.weights[at], is_exact);
      }
    }
  }

  test::Rack& rack() { return rack_; }

 private:
  struct Rank {
    uint32_t iteration = 0;  // 0 stands for the initial weights
    uint64_t slowness = 1;
    uint64_t ready_ns = 0;
    bool exchanges = false;
    std::vector<std::vector<float>> values;     // by tensor
    std::vector<std::vector<uint32_t>> counts;  // at the last read, by tensor, element and rank
  };

  bool is_done() const {
    return std::all_of(ranks_.begin(), ranks_.end(),
                       [](const Rank& rank) { return rank.iteration > kIterations; });
  }

  // The update is -learning rate * gradient, divided by the number of ranks if the reduction is the
  // mean.
  float gradient(uint32_t rank, uint32_t iteration) const {
    if (iteration == 0 || iteration > kIterations) return 0;
    const bool is_mean = options_.reduction == pipeline::Reduction::kMean;
    const float scale = is_mean ? static_cast<float>(options_.workers) : 1.0f;
    return -static_cast<float>(1u << (5 * rank)) * scale / options_.optimizer.learning_rate;
  }

  void start(uint32_t rank) {
    Rank& state = ranks_[rank];
    state.exchanges = true;
    for (uint32_t tensor = 0; tensor < options_.tensors.size(); ++tensor) {
      auto& values = state.values[tensor];
      std::fill(values.begin(), values.end(), gradient(rank, state.iteration));
      auto* data = reinterpret_cast<std::byte*>(values.data());
      rack_.worker(rank).start({.tensor = tensor,
                                .input = data,
                                .output = data,
                                .priority = options_.tensors[tensor].priority});
    }
  }

  void advance(uint32_t rank) {
    Rank& state = ranks_[rank];
    if (!state.exchanges) {
      if (rack_.now_ns() >= state.ready_ns) start(rank);
      return;
    }
    for (uint32_t tensor = 0; tensor < options_.tensors.size(); ++tensor) {
      if (rack_.worker(rank).busy(tensor)) return;
    }
    check_reads(rank);
    state.exchanges = false;
    state.ready_ns = rack_.now_ns() + rng_.below(2 * kComputeNs) * state.slowness;
    if (rng_.below(8) == 0) state.ready_ns += 10 * kComputeNs;
    // Under kDrop finished ranks keep pushing, so that the unfinished ones still find a quorum.
    const bool drops = options_.sync.model == SyncModel::kDrop;
    if (++state.iteration > kIterations && !drops) state.ready_ns = UINT64_MAX;
  }

  void check_reads(uint32_t rank) {
    Rank& state = ranks_[rank];
    for (uint32_t tensor = 0; tensor < options_.tensors.size(); ++tensor) {
      const auto& values = state.values[tensor];
      for (size_t at = 0; at < values.size(); ++at) {
        uint32_t* last = &state.counts[tensor][at * kRanksMax];
        if (is_right(rank, values[at], last)) continue;
        INFO("rank " << rank << ", tensor " << tensor << ", element " << at);
        FAIL("after " << state.iteration << " iterations the rank reads " << values[at]);
      }
    }
  }

  // `last`: by rank, the number of iterations that the element contained when it was last read.
  bool is_right(uint32_t rank, float value, uint32_t* last) {
    bool is_right = value >= 0;
    for (uint32_t other = 0; other < options_.workers; ++other) {
      const uint32_t count = digit(value, other);
      // an iteration that was read once never disappears
      is_right = is_right && count >= last[other];
      is_right = is_right && count <= ranks_[other].iteration;
      last[other] = count;
      const uint32_t iteration = ranks_[rank].iteration;
      if (options_.sync.model == SyncModel::kDrop) {
        if (other == rank && iteration <= kIterations)
          is_right = is_right && counts_all(rank, count);
        continue;
      }
      if (other == rank) is_right = is_right && count == iteration;  // all of its own, each once
      if (!has_bound(options_.sync)) continue;
      is_right = is_right && count + options_.sync.staleness >= iteration;
    }
    return is_right;
  }

  // Under kDrop every update that is missing from the weights must have been reported. A job of
  // more than one fragment reports an operation once if any of its fragments was dropped, so the
  // count is exact for one fragment only.
  bool counts_all(uint32_t rank, uint32_t count) {
    const uint64_t reported = rack_.worker(rank).statistics().dropped_rounds;
    const uint64_t all = count + reported;
    const bool is_exact = options_.tensors.size() == 1 && options_.tensors[0].elements == 1;
    return is_exact ? all == ranks_[rank].iteration : all >= ranks_[rank].iteration;
  }

  void check_weight(float weight, bool is_exact) const {
    uint32_t all = 0;
    for (uint32_t rank = 0; rank < options_.workers; ++rank) {
      const uint32_t count = digit(weight, rank);
      REQUIRE((is_exact ? count == kIterations : count <= kIterations));
      all += count;
    }
    REQUIRE(all >= kIterations);  // every round contains at least one rank
  }

  test::RackOptions options_;
  test::Rack rack_;
  Rng rng_;
  std::vector<Rank> ranks_;
};

test::RackOptions rack_of(uint32_t workers, const SyncSpec& sync, const nic::FaultPlan& faults) {
  test::RackOptions options;
  options.workers = workers;
  options.pipelines = 2;
  options.mode = pipeline::Mode::kOptimize;
  // Under kDrop the number of ranks in a mean varies, so this test could not predict the mean.
  const bool drops = sync.model == SyncModel::kDrop;
  options.reduction =
      workers == 4 && !drops ? pipeline::Reduction::kMean : pipeline::Reduction::kSum;
  options.optimizer.kind = optimizer::OptimizerKind::kSgd;
  options.optimizer.learning_rate = 0.25f;
  options.optimizer.weight_decay = 0;
  options.sync = sync;
  options.sync.quorum = std::min(sync.quorum, workers);
  options.faults = faults;
  for (const uint64_t elements : {1ull, 353ull, 9000ull}) {
    worker::TensorSpec tensor;
    tensor.elements = elements;
    tensor.priority = static_cast<int32_t>(elements % 3);
    options.tensors.push_back(tensor);
  }
  return options;
}

}  // namespace

TEST_CASE(
    "no update is lost or counted twice under any model, and no read is staler than allowed") {
  const uint64_t seed = GENERATE(range(uint64_t{41}, seeds_after(41)));
  const uint32_t workers = GENERATE(1u, 2u, 3u, 4u);
  const bool is_hostile = GENERATE(false, true);
  for (const Sync& sync : kSyncs) {
    INFO(sync.name << ", " << workers << " workers, seed " << seed << ", hostile " << is_hostile);
    nic::FaultPlan faults{.seed = seed, .delay_ns = 20'000};
    if (is_hostile) {
      faults.loss = faults.duplication = 0.05;
      faults.reordering = 0.2;
      faults.delay_max_ns = 30'000'000;
    }
    const auto options = rack_of(workers, sync.spec, faults);
    Training training(options, seed);
    training.run();
    const bool drops = options.sync.model == SyncModel::kDrop;
    training.check_weights(!drops || options.sync.quorum == workers);
    for (uint32_t rank = 0; rank < workers && !drops; ++rank) {
      const auto counts = training.rack().worker(rank).statistics().staleness;
      REQUIRE(counts.reads == (kIterations + 1) * options.tensors.size());
      if (!has_bound(options.sync)) continue;
      for (size_t age = sync.spec.staleness + 1; age < counts.by_staleness.size(); ++age) {
        REQUIRE(counts.by_staleness[age] == 0);
      }
    }
  }
}

TEST_CASE("a rank learns exactly how many of its rounds the other ranks' rounds have dropped") {
  const uint64_t seed = GENERATE(range(uint64_t{43}, seeds_after(43)));
  const uint32_t quorum = GENERATE(1u, 2u, 3u);
  INFO("quorum " << quorum << ", seed " << seed);
  const nic::FaultPlan faults{.seed = seed,
                              .loss = 0.05,
                              .duplication = 0.05,
                              .reordering = 0.2,
                              .delay_ns = 20'000,
                              .delay_max_ns = 5'000'000};
  test::RackOptions options = rack_of(3, {.model = SyncModel::kDrop, .quorum = quorum}, faults);
  options.tensors.resize(1);
  Training training(options, seed);
  training.run();
  uint64_t dropped = 0;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    dropped += training.rack().worker(rank).statistics().dropped_rounds;
  }
  CHECK((dropped == 0) == (quorum == 3));
}

TEST_CASE(
    "ranks whose pushes were dropped for some tensors only do not wait for each other forever") {
  test::RackOptions options =
      rack_of(3, {.model = SyncModel::kDrop, .quorum = 2}, {.delay_ns = 20'000});
  options.tensors.resize(2);
  test::Rack rack(options);
  std::vector<float> values(6 * 353, 0.0f);
  const auto start = [&](uint32_t rank, uint32_t tensor) {
    auto* data = reinterpret_cast<std::byte*>(&values[(2 * rank + tensor) * 353]);
    rack.worker(rank).start({.tensor = tensor, .input = data, .output = data});
  };
  const auto exchange = [&](const std::vector<uint32_t>& ranks, uint32_t tensor) {
    for (const uint32_t rank : ranks) start(rank, tensor);
    REQUIRE(rack.run_until_idle());
  };
  for (const uint32_t tensor : {0u, 1u}) exchange({0, 1, 2}, tensor);
  exchange({0, 1}, 0);
  exchange({0, 1, 2}, 1);
  exchange({0, 1}, 0);
  exchange({0, 1}, 1);
  exchange({0, 1}, 0);
  // Rank 2 has missed three rounds of tensor 0 and one of tensor 1. This push is for the first of
  // the three.
  exchange({2}, 0);
  start(0, 1);
  rack.step();
  for (uint32_t index = 0; index < options.pipelines; ++index) {
    rack.pipeline(index).execute({.kind = pipeline::CommandKind::kExclude,
                                  .shard = &rack.shard(index),
                                  .rank = 1,
                                  .generation = 2});
  }
  for (const uint32_t rank : {0u, 2u}) rack.worker(rank).set_generation(2);
  // Rank 2 starts both tensors again whenever both are complete. The quorum is now both remaining
  // ranks.
  for (uint32_t steps = 0; steps < 10'000 && rack.worker(0).busy(1); ++steps) {
    const bool is_done = !rack.worker(2).busy(0) && !rack.worker(2).busy(1);
    for (uint32_t tensor = 0; is_done && tensor < 2; ++tensor) start(2, tensor);
    rack.step();
  }
  CHECK_FALSE(rack.worker(0).busy(1));
}

TEST_CASE("a rank that is far ahead waits for the slowest rank and can name it") {
  const SyncSpec spec =
      GENERATE(SyncSpec{.model = SyncModel::kSsp, .staleness = 2},
               SyncSpec{.model = SyncModel::kSsp, .staleness = 2, .reads = Reads::kCached},
               SyncSpec{.model = SyncModel::kEssp, .staleness = 2});
  test::RackOptions options = rack_of(3, spec, {.delay_ns = 20'000});
  options.tensors.resize(1);
  test::Rack rack(options);
  std::vector<float> values(3, 0.0f);
  const auto start = [&](uint32_t rank) {
    auto* data = reinterpret_cast<std::byte*>(&values[rank]);
    values[rank] = 0;
    rack.worker(rank).start({.tensor = 0, .input = data, .output = data});
  };
  for (uint32_t rank = 0; rank < 3; ++rank) start(rank);
  REQUIRE(rack.run_until_idle());
  start(0);
  REQUIRE(rack.run_until_idle());
  uint32_t done = 0;
  for (; done < 10; ++done) {  // rank 1 stays where it is, rank 0 is one iteration ahead of it
    start(2);
    for (int steps = 0; steps < 2000 && rack.worker(2).busy(0); ++steps) rack.step();
    if (rack.worker(2).busy(0)) break;
  }
  CHECK(done == 2);
  const auto laggard = rack.worker(2).laggard(0, rack.now_ns());
  CHECK(laggard.kind == worker::Laggard::Kind::kRank);
  CHECK(laggard.rank == 1);
  CHECK(rack.worker(2).statistics().retransmitted_fragments == 0);
  start(1);
  REQUIRE(rack.run_until_idle());
}

}  // namespace pbox::exchange_sync_test
