// Tables between the engines of boxes and the exchanges of workers, as in the product, over a
// hostile in-process network. Ranks push some rows in each iteration.
#include <catch2/catch.hpp>
#include <cstring>

#include "base/rng.h"
#include "pipeline/optimizer/reference.h"
#include "tests/integration/hostile_network.h"
#include "tests/support/rack.h"

namespace pbox::exchange_tables_test {
namespace {

using test::hostile;
using test::seeds_after;

constexpr uint32_t kWorkers = 4;
constexpr uint32_t kRowElements = 50;  // some rows span two fragments or chunks
constexpr uint64_t kElements = 40'000;
constexpr uint64_t kRows = kElements / kRowElements;

test::RackOptions rack_of(uint64_t seed, const optimizer::OptimizerSpec& optimizer) {
  test::RackOptions options;
  options.workers = kWorkers;
  options.pipelines = 2;
  options.mode = pipeline::Mode::kOptimize;
  options.optimizer = optimizer;
  options.faults = hostile(seed);
  worker::TensorSpec& table = options.tensors.emplace_back();
  table.elements = kElements;
  table.row_elements = kRowElements;
  return options;
}

// A rank's table, and what it pushes.
struct Rank {
  std::vector<float> table = std::vector<float>(kElements, 0.0f);
  std::vector<uint64_t> ids;
  std::vector<float> rows;
  uint32_t iteration = 0;

  void start(worker::Exchange& exchange) {
    auto* data = reinterpret_cast<std::byte*>(table.data());
    worker::Operation operation{.tensor = 0, .output = data};
    if (iteration == 0) {
      operation.input = data;
    } else {
      operation.rows = std::make_shared<const worker::RowPush>(
          worker::RowPush{.ids = ids,
                          .values = reinterpret_cast<const std::byte*>(rows.data()),
                          .row_bytes = kRowElements * sizeof(float)});
    }
    exchange.start(operation);
  }
};

bool is_pushed(uint32_t rank, uint32_t iteration, uint64_t row) {
  // All rows, most, some or none.
  constexpr uint64_t kOf64[] = {64, 60, 4, 1, 0};
  const uint64_t pushed = kOf64[(iteration + rank) % std::size(kOf64)];
  return Rng(row << 20 | iteration << 4 | rank).below(64) < pushed;
}

void fill(Rank& state, uint32_t rank, float value) {
  state.ids.clear();
  for (uint64_t row = 0; row < kRows; ++row) {
    if (is_pushed(rank, state.iteration, row)) state.ids.push_back(row);
  }
  state.rows.assign(state.ids.size() * kRowElements, value);
}

// Returns in how many of a rank's first iterations it pushes the row.
uint32_t pushes_of(uint32_t rank, uint64_t row, uint32_t iterations) {
  uint32_t pushed = 0;
  for (uint32_t one = 1; one <= iterations; ++one) pushed += is_pushed(rank, one, row) ? 1 : 0;
  return pushed;
}

}  // namespace

TEST_CASE("tables follow the optimizer's definition over a hostile network, row by row") {
  const auto kind = GENERATE(optimizer::OptimizerKind::kMomentum, optimizer::OptimizerKind::kAdam);
  const uint64_t seed = GENERATE(range(uint64_t{31}, seeds_after(31)));
  INFO("seed " << seed);
  const optimizer::OptimizerSpec spec{.kind = kind, .learning_rate = 0.125f, .momentum = 0.5f};
  const auto options = rack_of(seed, spec);
  test::Rack rack(options);
  std::vector<Rank> ranks(kWorkers);
  std::vector<float> expected(kRows, 0.0f);  // all elements of a row are alike
  std::vector<float> states[2] = {expected, expected};
  for (uint32_t iteration = 0; iteration < 8; ++iteration) {
    for (uint32_t rank = 0; rank < kWorkers; ++rank) {
      ranks[rank].iteration = iteration;
      fill(ranks[rank], rank, static_cast<float>(1u << rank));
      ranks[rank].start(rack.worker(rank));
    }
    REQUIRE(rack.run_until_idle());
    const auto c = optimizer::step_coefficients(
        spec, optimizer::step_parameters(spec, 1, 0, 1, std::max(iteration, 1u)));
    for (uint64_t row = 0; row < kRows && iteration > 0; ++row) {
      float sum = 0;
      for (uint32_t rank = 0; rank < kWorkers; ++rank) {
        if (is_pushed(rank, iteration, row)) sum += static_cast<float>(1u << rank);
      }
      if (sum == 0) continue;
      float state[2] = {states[0][row], states[1][row]};
      optimizer::reference::step(kind, c, &expected[row], state, &sum, 1);
      for (const size_t slot : {0u, 1u}) states[slot][row] = state[slot];
    }
    for (const Rank& rank : ranks) {
      for (uint64_t at = 0; at < kElements; ++at) {
        if (rank.table[at] != expected[at / kRowElements]) {
          FAIL("iteration " << iteration << " element " << at << ": " << rank.table[at]
                            << " instead of " << expected[at / kRowElements]);
        }
      }
    }
  }
  CHECK(rack.network().counts().lost > 50);
  CHECK(rack.worker(0).statistics().retransmitted_fragments > 0);
}

// Each rank's update adds its own power of 32 to a weight, so that a weight's digits in base 32
// tell how many iterations of each rank it contains.
TEST_CASE(
    "where pushes are applied on arrival, each rank's table has all updates that it must have") {
  const wire::SyncSpec models[] = {
      {.model = wire::SyncModel::kAsp},
      {.model = wire::SyncModel::kSsp, .staleness = 2},
      {.model = wire::SyncModel::kEssp, .staleness = 2, .reads = wire::Reads::kAnswered}};
  const auto& sync = models[GENERATE(0, 1, 2)];
  const uint64_t seed = GENERATE(range(uint64_t{41}, seeds_after(41)));
  INFO("seed " << seed << " model " << static_cast<int>(sync.model));
  constexpr uint32_t kIterations = 12;
  auto options = rack_of(seed, {.kind = optimizer::OptimizerKind::kSgd, .learning_rate = 1});
  options.sync = sync;
  test::Rack rack(options);
  std::vector<Rank> ranks(kWorkers);
  const auto check = [&](uint32_t reader) {
    const uint32_t done = ranks[reader].iteration;
    for (uint64_t at = 0; at < kElements; ++at) {
      const uint64_t row = at / kRowElements;
      const auto weight = static_cast<uint32_t>(ranks[reader].table[at]);
      for (uint32_t rank = 0; rank < kWorkers; ++rank) {
        const uint32_t found = weight >> (5 * rank) & 31u;
        const bool has_bound = sync.model != wire::SyncModel::kAsp;
        const uint32_t least = rank == reader ? pushes_of(rank, row, done)
                               : has_bound && done > sync.staleness
                                   ? pushes_of(rank, row, done - sync.staleness)
                                   : 0;
        const uint32_t most = rank == reader ? least : pushes_of(rank, row, ranks[rank].iteration);
        if (found >= least && found <= most) continue;
        FAIL("rank " << reader << " finds " << found << " updates of rank " << rank << " in row "
                     << row << " after its " << done << ", at least " << least << " at most "
                     << most);
      }
    }
  };
  for (uint32_t rank = 0; rank < kWorkers; ++rank) ranks[rank].start(rack.worker(rank));
  for (bool busy = true; busy;) {
    busy = false;
    for (uint32_t rank = 0; rank < kWorkers; ++rank) {
      Rank& state = ranks[rank];
      worker::Exchange& exchange = rack.worker(rank);
      if (exchange.busy(0)) {
        busy = true;
        continue;
      }
      if (exchange.take_completed().empty()) continue;
      check(rank);
      if (state.iteration == kIterations) continue;
      ++state.iteration;
      fill(state, rank, -static_cast<float>(1u << (5 * rank)));
      state.start(exchange);
      busy = true;
    }
    rack.step();
  }
  for (uint32_t rank = 0; rank < kWorkers; ++rank) {
    ranks[rank].iteration = kIterations + 1;
    ranks[rank].ids.clear();
    ranks[rank].rows.clear();
    ranks[rank].start(rack.worker(rank));
  }
  REQUIRE(rack.run_until_idle());
  for (uint64_t at = 0; at < kElements; ++at) {
    for (uint32_t rank = 0; rank < kWorkers; ++rank) {
      const auto weight = static_cast<uint32_t>(ranks[0].table[at]);
      REQUIRE((weight >> (5 * rank) & 31u) == pushes_of(rank, at / kRowElements, kIterations));
      REQUIRE(ranks[rank].table[at] == ranks[0].table[at]);
    }
  }
}

}  // namespace pbox::exchange_tables_test
