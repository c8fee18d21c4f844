// Consistency models through the C ABI: the valid choices, and training with ranks of different
// speed against a real box. Each rank's update adds its own power of 32 to every weight. A weight's
// digits in base 32 therefore tell how many iterations of each rank it contains.
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <numeric>

#include "pipeline/optimizer/reference.h"
#include "tests/support/daemon.h"
#include "tests/support/worker_process.h"

namespace pbox::test {
namespace {

// Returns the status of creating a context with these options; the context never joins.
pbox_status create(const pbox_options& options) {
  pbox_context* context = nullptr;
  const pbox_status status = pbox_create(&options, &context);
  pbox_destroy(context);
  return status;
}

pbox_status read(const char* name, const char* text, pbox_options* options) {
  setenv(name, text, 1);
  const pbox_status status = pbox_options_from_environment(options);
  unsetenv(name);
  return status;
}

constexpr uint32_t kElements = 20'000;
constexpr uint32_t kWorkers = 3;
constexpr uint32_t kIterations = 20;
constexpr useconds_t kSlowUs = 4'000;  // additional time of the last rank per iteration

struct Model {
  const char* name;
  pbox_sync sync;
  uint32_t staleness = 0;
  float probability = 1;
  pbox_release release = PBOX_RELEASE_SOFT;
  pbox_reads reads = PBOX_READS_FRESH;
  uint32_t quorum = 0;

  bool has_bound() const {
    return sync == PBOX_SYNC_BSP || sync == PBOX_SYNC_SSP || sync == PBOX_SYNC_ESSP;
  }
  bool keeps_copy() const { return sync == PBOX_SYNC_ESSP || reads == PBOX_READS_CACHED; }
};

void adjust(const Model& model, pbox_options& options) {
  options.mode = PBOX_MODE_OPTIMIZE;
  options.reduction = PBOX_SUM;
  options.recovery = PBOX_RECOVERY_NONE;
  options.sync = model.sync;
  options.staleness = model.staleness;
  options.sync_probability = model.probability;
  options.release = model.release;
  options.reads = model.reads;
  options.quorum = model.quorum;
}

// A joined rank of a job with one tensor whose weights start at 0; the box runs plain SGD with
// learning rate 1.
class Rank {
 public:
  Rank(const std::string& box, const Model& model, uint32_t rank)
      : rank_(rank),
        worker_({.box = box,
                 .job = model.name,
                 .rank = rank,
                 .world_size = kWorkers,
                 .adjust = [&](auto& options) { adjust(model, options); }}) {
    worker_.tensor("weights", kElements);
    worker_.join_with_sgd(1, 0, weights_);
  }

  void start() {
    std::fill(weights_.begin(), weights_.end(), -static_cast<float>(1u << (5 * rank_)));
    worker_.push_pull(0, weights_.data(), weights_.data());
  }
  void train(const Model& model) {
    for (uint32_t iteration = 1; iteration <= kIterations; ++iteration) {
      if (rank_ + 1 == kWorkers) usleep(kSlowUs);
      start();
      worker_.wait(0);
      check(model, iteration);
    }
  }
  const AbiWorker& worker() const { return worker_; }

 private:
  void check(const Model& model, uint32_t iteration) const {
    const auto [least, most] = std::minmax_element(weights_.begin(), weights_.end());
    for (const float weight : {*least, *most}) {
      for (uint32_t rank = 0; rank < kWorkers; ++rank) {
        const uint32_t count = static_cast<uint32_t>(weight) >> (5 * rank) & 31u;
        const std::string found = "rank " + std::to_string(rank_) + " finds " +
                                  std::to_string(count) + " iterations of rank " +
                                  std::to_string(rank) + " after its " + std::to_string(iteration);
        require(count <= kIterations, found);
        if (model.sync == PBOX_SYNC_DROP) continue;
        require(rank != rank_ || count == iteration, found);
        require(!model.has_bound() || count + model.staleness >= iteration, found);
      }
    }
  }

  uint32_t rank_;
  std::vector<float> weights_ = std::vector<float>(kElements);
  AbiWorker worker_;
};

void check_statistics(const Model& model, const pbox_statistics& statistics) {
  const uint64_t* by_staleness = statistics.reads_by_staleness;
  require(statistics.reads == kIterations + 1, "reads");
  require(std::accumulate(by_staleness, by_staleness + PBOX_STALENESS_BUCKETS, uint64_t{0}) ==
              statistics.reads,
          "the counts of reads by staleness do not add up");
  require(statistics.staleness_sum <= 0, "the sum of staleness is above 0");
  require((statistics.staleness_sum == 0) == (statistics.staleness_square_sum == 0), "squares");
  require(!model.has_bound() ||
              statistics.staleness_sum >= -static_cast<int64_t>(model.staleness * statistics.reads),
          "a read was staler than the bound");
  require((statistics.shadow_bytes >= kElements * sizeof(float)) == model.keeps_copy(), "memory");
  require(model.sync == PBOX_SYNC_DROP || statistics.dropped_rounds == 0, "rounds were dropped");
}

constexpr float kRate = 0.0625f;
constexpr float kDecay = 0.125f;

pbox_optimizer_options optimizer_of(pbox_optimizer kind) {
  pbox_optimizer_options options;
  pbox_optimizer_options_init(&options, kind);
  options.learning_rate = kRate;
  options.weight_decay = kDecay;
  options.momentum = 0.5f;
  return options;
}

// Returns what a weight of 1 is after n updates by a gradient of 1, for n in [0, most]. All ranks
// push the same gradient, so nothing depends on their order.
std::vector<float> weights_by_updates(pbox_optimizer kind, uint32_t most) {
  const pbox_optimizer_options chosen = optimizer_of(kind);
  const optimizer::OptimizerSpec spec{.kind = static_cast<optimizer::OptimizerKind>(kind),
                                      .learning_rate = chosen.learning_rate,
                                      .momentum = chosen.momentum,
                                      .beta1 = chosen.beta1,
                                      .beta2 = chosen.beta2,
                                      .epsilon = chosen.epsilon,
                                      .weight_decay = chosen.weight_decay};
  std::vector<float> weights = {1};
  std::vector<float> state(optimizer::state_floats_per_element(spec.kind));
  const float gradient = 1;
  for (uint32_t update = 1; update <= most; ++update) {
    float weight = weights.back();
    const auto parameters = optimizer::step_parameters(spec, 1, spec.weight_decay, 1, update);
    optimizer::reference::step(spec.kind, optimizer::step_coefficients(spec, parameters), &weight,
                               state.data(), &gradient, 1);
    weights.push_back(weight);
  }
  return weights;
}

// A rank that pushes gradients of 1 and finds in each read the updates that the model promises.
void train_with(const std::string& box, const Model& model, pbox_optimizer kind, uint32_t rank) {
  AbiWorker worker({.box = box,
                    .job = model.name + std::to_string(kind),
                    .rank = rank,
                    .world_size = kWorkers,
                    .adjust = [&](auto& options) { adjust(model, options); }});
  worker.tensor("weights", kElements);
  const pbox_optimizer_options chosen = optimizer_of(kind);
  worker.must(pbox_set_optimizer(worker.context(), &chosen));
  worker.join();
  std::vector<float> weights(kElements, 1.0f);
  worker.must(pbox_init_weights(worker.context(), 0, weights.data(), nullptr, nullptr));
  worker.wait(0);
  const std::vector<float> expected = weights_by_updates(kind, kWorkers * kIterations);
  const std::vector<float> gradient(kElements, 1.0f);
  for (uint32_t iteration = 1; iteration <= kIterations; ++iteration) {
    if (rank + 1 == kWorkers) usleep(kSlowUs);
    worker.push_pull(0, gradient.data(), weights.data());
    worker.wait(0);
    const uint32_t others = iteration - std::min(iteration, model.staleness);
    const auto first = expected.begin() + iteration + (kWorkers - 1) * others;
    const auto last = expected.begin() + iteration + (kWorkers - 1) * kIterations + 1;
    for (const float weight : weights) {
      require(std::find(first, last, weight) != last,
              "rank " + std::to_string(rank) + " reads " + std::to_string(weight) +
                  " after its iteration " + std::to_string(iteration));
    }
  }
  require(worker.statistics().shadow_bytes == 0, "a copy is kept");
  worker.must(pbox_barrier(worker.context(), 0));
  worker.leave();
}

}  // namespace

TEST_CASE("a consistency model with a value out of range is refused by field and value") {
  struct Row {
    void (*change)(pbox_options&);
    const char* words;
  };
  const Row rows[] = {
      {[](pbox_options& o) { o.sync = -1; }, "sync -1 is unknown"},
      {[](pbox_options& o) { o.sync = 8; }, "sync 8 is unknown"},
      {[](pbox_options& o) { o.staleness = 65; }, "staleness 65 must be at most 64"},
      {[](pbox_options& o) { o.sync_probability = 0; }, "must be in (0, 1]"},
      {[](pbox_options& o) { o.sync_probability = 1.5f; }, "sync_probability 1.5"},
      {[](pbox_options& o) { o.sync_probability = NAN; }, "must be in (0, 1]"},
      {[](pbox_options& o) { o.release = 2; }, "release 2 is unknown"},
      {[](pbox_options& o) { o.reads = -3; }, "reads -3 is unknown"},
      {[](pbox_options& o) { o.quorum = 5; }, "quorum 5 must be at most world_size 4"},
  };
  for (const Row& row : rows) {
    pbox_options options;
    pbox_options_init(&options);
    options.world_size = 4;
    CHECK(create(options) == PBOX_OK);
    row.change(options);
    CHECK(create(options) == PBOX_INVALID_ARGUMENT);
    CHECK_THAT(pbox_last_error(nullptr), Catch::Contains(row.words));
  }
}

TEST_CASE("the consistency model may come from the environment, in the words of the manual") {
  pbox_options options;
  CHECK(pbox_options_from_environment(&options) == PBOX_OK);
  CHECK(options.sync == PBOX_SYNC_BSP);
  CHECK(options.staleness == 0);
  CHECK(options.sync_probability == 1.0f);
  CHECK(options.release == PBOX_RELEASE_SOFT);
  CHECK(options.reads == PBOX_READS_FRESH);
  CHECK(options.quorum == 0);
  int32_t model = 0;
  for (const char* word : {"bsp", "asp", "ssp", "essp", "pssp", "dpssp", "drop"}) {
    CHECK(read("PBOX_SYNC", word, &options) == PBOX_OK);
    CHECK(options.sync == model++);
  }
  CHECK(read("PBOX_STALENESS", "3", &options) == PBOX_OK);
  CHECK(options.staleness == 3);
  CHECK(read("PBOX_SYNC_PROBABILITY", "0.25", &options) == PBOX_OK);
  CHECK(options.sync_probability == 0.25f);
  CHECK(read("PBOX_RELEASE", "lazy", &options) == PBOX_OK);
  CHECK(options.release == PBOX_RELEASE_LAZY);
  CHECK(read("PBOX_READS", "cached", &options) == PBOX_OK);
  CHECK(options.reads == PBOX_READS_CACHED);
  CHECK(read("PBOX_QUORUM", "1", &options) == PBOX_OK);
  CHECK(options.quorum == 1);
  CHECK(read("PBOX_SYNC", "BSP", &options) == PBOX_INVALID_ARGUMENT);
  CHECK(read("PBOX_SYNC_PROBABILITY", "half", &options) == PBOX_INVALID_ARGUMENT);
}

TEST_CASE("ranks of different speed train under every model and read what the model promises") {
  const Model models[] = {
      {.name = "bsp", .sync = PBOX_SYNC_BSP},
      {.name = "asp", .sync = PBOX_SYNC_ASP},
      {.name = "ssp", .sync = PBOX_SYNC_SSP, .staleness = 2},
      {.name = "lazy", .sync = PBOX_SYNC_SSP, .staleness = 2, .release = PBOX_RELEASE_LAZY},
      {.name = "cached", .sync = PBOX_SYNC_SSP, .staleness = 2, .reads = PBOX_READS_CACHED},
      {.name = "essp", .sync = PBOX_SYNC_ESSP, .staleness = 2},
      {.name = "pssp", .sync = PBOX_SYNC_PSSP, .staleness = 1, .probability = 0.5f},
      {.name = "dpssp", .sync = PBOX_SYNC_DPSSP, .staleness = 1},
      {.name = "drop", .sync = PBOX_SYNC_DROP, .quorum = 1},
  };
  Daemon daemon;
  for (const Model& model : models) {
    INFO(model.name);
    std::vector<WorkerProcess> workers;
    for (uint32_t rank = 0; rank < kWorkers; ++rank) {
      workers.emplace_back([&, rank](Line&) {
        Rank trained(daemon.control(), model, rank);
        trained.train(model);
        check_statistics(model, trained.worker().statistics());
        trained.worker().must(pbox_barrier(trained.worker().context(), 0));
        trained.worker().leave();
      });
    }
    for (auto& worker : workers) CHECK(worker.finish() == "");
  }
  CHECK(daemon.await_no_jobs(kDeadlineMs));
}

TEST_CASE("ESSP and cached reads go with every optimizer, and reads hold the rank's own updates") {
  const Model models[] = {
      {.name = "cached", .sync = PBOX_SYNC_SSP, .staleness = 2, .reads = PBOX_READS_CACHED},
      {.name = "essp", .sync = PBOX_SYNC_ESSP, .staleness = 2},
      {.name = "strict", .sync = PBOX_SYNC_ESSP},
  };
  Daemon daemon;
  for (const Model& model : models) {
    for (const pbox_optimizer kind :
         {PBOX_SGD, PBOX_MOMENTUM, PBOX_NESTEROV, PBOX_ADAM, PBOX_ADAMW}) {
      INFO(model.name << " with optimizer " << kind);
      std::vector<WorkerProcess> workers;
      for (uint32_t rank = 0; rank < kWorkers; ++rank) {
        workers.emplace_back([&, rank](Line&) { train_with(daemon.control(), model, kind, rank); });
      }
      for (auto& worker : workers) CHECK(worker.finish() == "");
    }
  }
}

TEST_CASE("a rank that is held back for too long learns which rank is the slowest") {
  const Model models[] = {
      {.name = "ssp", .sync = PBOX_SYNC_SSP, .staleness = 1},
      {.name = "cached", .sync = PBOX_SYNC_SSP, .staleness = 1, .reads = PBOX_READS_CACHED},
      {.name = "essp", .sync = PBOX_SYNC_ESSP, .staleness = 1},
  };
  Daemon daemon;
  for (const Model& model : models) {
    INFO(model.name);
    std::vector<WorkerProcess> workers;
    for (uint32_t rank = 0; rank < kWorkers; ++rank) {
      workers.emplace_back([&, rank](Line& line) {
        Rank trained(daemon.control(), model, rank);
        pbox_context* context = trained.worker().context();
        if (rank == 1) line.await_go();
        trained.start();
        if (rank == 0) {
          trained.worker().wait(0);
          trained.start();
          require_contains(trained.worker().must_be(PBOX_TIMEOUT, pbox_wait(context, 0, 500)),
                           "rank 1 is late");
          line.say("told");
        }
        trained.worker().wait(0);
        trained.worker().must(pbox_barrier(context, 0));
      });
    }
    CHECK(workers[0].heard() == "told");
    workers[1].go();
    for (auto& worker : workers) CHECK(worker.finish() == "");
  }
}

TEST_CASE("contradictory options are refused by the box, and the caller gets the reason") {
  Daemon daemon;
  const auto refusal = [&](void (*change)(pbox_options&)) {
    return WorkerProcess([&](Line&) {
             AbiWorker worker({.box = daemon.control(), .adjust = change});
             worker.tensor("t", 1);
             worker.join();
           })
        .finish();
  };
  CHECK_THAT(refusal([](pbox_options& options) {
               options.sync = PBOX_SYNC_ASP;
               options.recovery = PBOX_RECOVERY_NONE;
             }),
             Catch::Contains("asp needs mode optimize"));
  CHECK_THAT(refusal([](pbox_options& options) { options.staleness = 3; }),
             Catch::Contains("staleness 3 has no meaning with sync.model bsp"));
}

}  // namespace pbox::test
