// Tables through the C ABI: ranks push some rows to a real box, and after each step every rank's
// table is bit for bit what the definition of the optimizer gives for the rows that were pushed.
#include <signal.h>

#include <catch2/catch.hpp>
#include <cmath>

#include "base/rng.h"
#include "pipeline/optimizer/reference.h"
#include "tests/support/daemon.h"
#include "tests/support/mortal_box.h"
#include "tests/support/worker_process.h"

namespace pbox::test {
namespace {

constexpr uint64_t kRows = 3000;
constexpr uint32_t kRowElements = 70;  // some rows span two chunks
constexpr uint64_t kElements = kRows * kRowElements;
constexpr uint32_t kWorkers = 2;
constexpr uint32_t kSteps = 12;

using Optimize = void (*)(pbox_optimizer_options&);

struct Job {
  std::string box = {};
  std::string name = "job";
  pbox_optimizer kind = PBOX_SGD;
  Optimize optimize = nullptr;
  void (*adjust)(pbox_options&) = nullptr;
  uint64_t one_in = 50;  // one row in this many is pushed
};

pbox_optimizer_options optimizer_of(const Job& job) {
  pbox_optimizer_options options;
  pbox_optimizer_options_init(&options, job.kind);
  options.learning_rate = 0.0625f;
  if (job.optimize != nullptr) job.optimize(options);
  return options;
}

bool is_pushed(const Job& job, uint32_t rank, uint32_t step, uint64_t row) {
  return Rng(row << 20 | step << 4 | rank).next() % job.one_in == 0;
}

// Sums of these are exact, in any order.
float gradient_of(uint32_t rank, uint32_t step, uint64_t element) {
  return static_cast<float>((element * 7 + step * 3 + rank * 5) % 17) * 0.125f - 1;
}

// The table as the box must make it.
class Oracle {
 public:
  explicit Oracle(const Job& job) : job_(job), weights_(kElements, 1.0f) {
    const pbox_optimizer_options options = optimizer_of(job);
    spec_ = {.kind = static_cast<optimizer::OptimizerKind>(options.kind),
             .learning_rate = options.learning_rate,
             .momentum = options.momentum,
             .beta1 = options.beta1,
             .beta2 = options.beta2,
             .epsilon = options.epsilon,
             .weight_decay = options.weight_decay};
    state_.resize(optimizer::state_floats_per_element(spec_.kind), std::vector<float>(kElements));
  }

  // Takes the step of a round that all of `ranks` have pushed. Returns the norm of the mean.
  double step(uint32_t step, const std::vector<uint32_t>& ranks) {
    const auto parameters = optimizer::step_parameters(spec_, 1, spec_.weight_decay,
                                                       1.0f / static_cast<float>(kWorkers), step);
    const auto coefficients = optimizer::step_coefficients(spec_, parameters);
    double squares = 0;
    for (uint64_t row = 0; row < kRows; ++row) {
      bool any = false;
      for (const uint32_t rank : ranks) any = any || is_pushed(job_, rank, step, row);
      for (uint64_t at = row * kRowElements; any && at < (row + 1) * kRowElements; ++at) {
        float sum = 0;
        for (const uint32_t rank : ranks) {
          if (is_pushed(job_, rank, step, row)) sum += gradient_of(rank, step, at);
        }
        squares += std::pow(double{sum} / kWorkers, 2);
        step_element(coefficients, at, sum);
      }
    }
    return std::sqrt(squares);
  }
  const std::vector<float>& weights() const { return weights_; }

 private:
  void step_element(const optimizer::StepCoefficients& c, uint64_t at, float gradient) {
    float state[2] = {};
    for (size_t index = 0; index < state_.size(); ++index) state[index] = state_[index][at];
    optimizer::reference::step(spec_.kind, c, &weights_[at], state, &gradient, 1);
    for (size_t index = 0; index < state_.size(); ++index) state_[index][at] = state[index];
  }

  const Job& job_;
  optimizer::OptimizerSpec spec_;
  std::vector<float> weights_;
  std::vector<std::vector<float>> state_;
};

class Rank {
 public:
  Rank(const Job& job, uint32_t rank, bool rejoin = false)
      : job_(job),
        rank_(rank),
        table_(kElements, 1.0f),
        worker_({.box = job.box,
                 .job = job.name,
                 .rank = rank,
                 .world_size = kWorkers,
                 .adjust = [&](pbox_options& options) {
                   options.mode = PBOX_MODE_OPTIMIZE;
                   options.reduction = PBOX_MEAN;
                   options.rejoin = rejoin ? 1 : 0;
                   if (job.adjust != nullptr) job.adjust(options);
                 }}) {
    worker_.tensor("dense", 100);
    worker_.tensor("table", kElements);
    worker_.must(pbox_set_tensor_rows(worker_.context(), 1, kRowElements));
    const pbox_optimizer_options options = optimizer_of(job);
    worker_.must(pbox_set_optimizer(worker_.context(), &options));
    worker_.join();
    worker_.must(pbox_init_weights(worker_.context(), 0, dense_.data(), nullptr, nullptr));
    worker_.must(pbox_init_weights(worker_.context(), 1, table_.data(), nullptr, nullptr));
    worker_.wait_all();
  }

  void step(uint32_t step) {
    ids_.clear();
    rows_.clear();
    for (uint64_t row = 0; row < kRows; ++row) {
      if (!is_pushed(job_, rank_, step, row)) continue;
      ids_.push_back(row);
      for (uint64_t at = row * kRowElements; at < (row + 1) * kRowElements; ++at) {
        rows_.push_back(gradient_of(rank_, step, at));
      }
    }
    const std::vector<float> gradient(dense_.size());
    worker_.push_pull(0, gradient.data(), dense_.data());
    worker_.must(pbox_push_pull_rows(worker_.context(), 1, ids_.data(), ids_.size(), rows_.data(),
                                     table_.data(), nullptr, nullptr));
    worker_.wait_all();
  }
  void check(uint32_t step, const std::vector<float>& expected) const {
    for (uint64_t at = 0; at < kElements; ++at) {
      if (table_[at] == expected[at]) continue;
      require(false, "rank " + std::to_string(rank_) + " step " + std::to_string(step) + " row " +
                         std::to_string(at / kRowElements) + ": " + std::to_string(table_[at]) +
                         " instead of " + std::to_string(expected[at]));
    }
  }
  uint32_t round() const {
    uint32_t round = 0;
    worker_.must(pbox_tensor_round(worker_.context(), 1, &round));
    return round;
  }
  const AbiWorker& worker() const { return worker_; }
  void leave() const {
    worker_.must(pbox_barrier(worker_.context(), 0));
    worker_.leave();
  }

 private:
  const Job& job_;
  uint32_t rank_;
  std::vector<float> dense_ = std::vector<float>(100, 1.0f);
  std::vector<float> table_;
  std::vector<uint64_t> ids_;
  std::vector<float> rows_;
  AbiWorker worker_;
};

// Runs kSteps steps on every rank, and calls check(rank, oracle's norm) after each.
template <typename Check>
void train(const Job& job, Check check) {
  std::vector<WorkerProcess> workers;
  for (uint32_t rank = 0; rank < kWorkers; ++rank) {
    workers.emplace_back([&job, rank, check](Line&) {
      Rank trained(job, rank);
      Oracle oracle(job);
      for (uint32_t step = 1; step <= kSteps; ++step) {
        trained.step(step);
        const double norm = oracle.step(step, {0, 1});
        trained.check(step, oracle.weights());
        check(trained, norm);
      }
      trained.leave();
    });
  }
  for (auto& worker : workers) CHECK(worker.finish() == "");
}

std::string refusal(const std::string& box, const std::function<void(AbiWorker&)>& prepare,
                    void (*change)(pbox_options&)) {
  return WorkerProcess([&](Line&) {
           AbiWorker worker({.box = box, .adjust = change});
           worker.tensor("table", 1000);
           prepare(worker);
           worker.join();
         })
      .finish();
}

}  // namespace

TEST_CASE("every optimizer steps the rows that some rank has pushed, and no others") {
  Daemon daemon;
  const Job jobs[] = {
      {.name = "sgd", .kind = PBOX_SGD},
      {.name = "decay", .kind = PBOX_SGD, .optimize = [](auto& o) { o.weight_decay = 0.125f; }},
      {.name = "momentum", .kind = PBOX_MOMENTUM},
      {.name = "nesterov", .kind = PBOX_NESTEROV},
      {.name = "adam", .kind = PBOX_ADAM},
      {.name = "adamw", .kind = PBOX_ADAMW},
      {.name = "adagrad", .kind = PBOX_ADAGRAD},
      {.name = "dense", .kind = PBOX_ADAM, .one_in = 1},
      {.name = "pull",
       .kind = PBOX_ADAM,
       .adjust = [](auto& o) { o.delivery = PBOX_DELIVERY_PULL; }},
  };
  for (Job job : jobs) {
    INFO(job.name);
    job.box = daemon.control();
    train(job, [](const Rank&, double) {});
  }
  CHECK(daemon.await_no_jobs(kDeadlineMs));
}

TEST_CASE("the rows that are pushed travel, and of the others a packet for each chunk") {
  Daemon daemon;
  const Job job{.box = daemon.control(), .one_in = 300};
  train(job, [](const Rank&, double) {});
  const auto bytes_of = [&](uint64_t one_in) {
    WorkerProcess first([&](Line& line) {
      const Job other{.box = daemon.control(), .name = "bytes", .one_in = one_in};
      Rank rank(other, 0);
      const pbox_statistics before = rank.worker().statistics();
      rank.step(1);
      const pbox_statistics after = rank.worker().statistics();
      line.say(std::to_string(after.bytes_pushed - before.bytes_pushed + after.bytes_pulled -
                              before.bytes_pulled));
      rank.leave();
    });
    WorkerProcess second([&](Line&) {
      const Job other{.box = daemon.control(), .name = "bytes", .one_in = one_in};
      Rank rank(other, 1);
      rank.step(1);
      rank.leave();
    });
    const std::string said = first.heard().value_or("0");
    CHECK(first.finish() == "");
    CHECK(second.finish() == "");
    return std::stoull(said);
  };
  const uint64_t sparse = bytes_of(300);
  const uint64_t dense = bytes_of(1);
  CHECK(dense >= 2 * kElements * sizeof(float));
  CHECK(sparse < dense / 30);
}

TEST_CASE("a clipped step has the norm of the pushed rows, and changes them alone") {
  Daemon daemon;
  const Job job{.box = daemon.control(), .kind = PBOX_MOMENTUM, .optimize = [](auto& o) {
                  o.max_grad_norm = 1e6f;
                }};
  train(job, [](const Rank& rank, double norm) {
    pbox_step step{};
    step.struct_size = sizeof(step);
    rank.worker().must(pbox_last_step(rank.worker().context(), &step));
    require(std::abs(step.norm - norm) < 1e-5 * norm,
            "the norm is " + std::to_string(step.norm) + " instead of " + std::to_string(norm));
  });
}

TEST_CASE("a table survives its box, and a rank that takes a lost one's place gets all of it") {
  MortalBox box;
  const Job job{.box = box.daemon().control()};
  const auto body = [&](Line& line, uint32_t rank, bool rejoin) {
    Rank trained(job, rank, rejoin);
    Oracle oracle(job);
    const uint32_t done = trained.round() - 1;
    require(rejoin == (done > 0), "begins at round " + std::to_string(done));
    for (uint32_t step = 1; step <= done; ++step) oracle.step(step, {0, 1});
    trained.check(done, oracle.weights());
    uint32_t left = 8;
    for (uint32_t step = done + 1; left > 0; ++step) {
      if (step == 5 && rank == 1) {
        line.say("four steps");
        line.await_go();
      }
      trained.step(step);
      oracle.step(step, {0, 1});
      trained.check(step, oracle.weights());
      if (step == 10) line.say("ten steps");
      if (trained.worker().statistics().recoveries > 0) --left;
    }
  };
  WorkerProcess first([&](Line& line) { body(line, 0, false); });
  WorkerProcess second([&](Line& line) { body(line, 1, false); });
  CHECK(second.heard() == "four steps");
  second.signal(SIGKILL);
  second.finish();
  WorkerProcess again([&](Line& line) { body(line, 1, true); });
  CHECK(again.heard() == "four steps");
  again.go();
  CHECK(again.heard() == "ten steps");
  CHECK(first.heard() == "ten steps");
  box.kill();
  box.start_again();
  CHECK(first.finish() == "");
  CHECK(again.finish() == "");
  CHECK(box.daemon().metric("pbox_jobs_recovered_total") == 1);
}

TEST_CASE("in other models than bsp the rows that have changed come back, or all of them") {
  Daemon daemon;
  for (const pbox_sync sync : {PBOX_SYNC_ASP, PBOX_SYNC_ESSP, PBOX_SYNC_DROP}) {
    WorkerProcess only([&](Line&) {
      AbiWorker worker({.box = daemon.control(),
                        .job = "model" + std::to_string(sync),
                        .adjust = [&](pbox_options& options) {
                          options.mode = PBOX_MODE_OPTIMIZE;
                          options.recovery = PBOX_RECOVERY_NONE;
                          options.sync = sync;
                          options.quorum = sync == PBOX_SYNC_DROP ? 1 : 0;
                        }});
      worker.tensor("table", kElements);
      worker.must(pbox_set_tensor_rows(worker.context(), 0, kRowElements));
      std::vector<float> table(kElements, 1.0f);
      worker.join_with_sgd(1, 0, table);
      const std::vector<uint64_t> ids = {3, 500, 2999};
      const std::vector<float> rows(ids.size() * kRowElements, 0.5f);
      for (uint32_t step = 0; step < 3; ++step) {
        // Rows that are not sent stay as the application has left them.
        const bool is_whole = sync == PBOX_SYNC_DROP;
        std::fill(table.begin(), table.end(), 7.0f);
        worker.must(pbox_push_pull_rows(worker.context(), 0, ids.data(), ids.size(), rows.data(),
                                        table.data(), nullptr, nullptr));
        worker.wait(0);
        for (uint64_t at = 0; at < kElements; ++at) {
          const uint64_t row = at / kRowElements;
          const bool is_stepped = row == 3 || row == 500 || row == 2999;
          const float expected = is_stepped ? 1 - 0.5f * static_cast<float>(step + 1)
                                 : is_whole ? 1
                                            : 7;
          require(table[at] == expected, "row " + std::to_string(row));
        }
      }
      worker.leave();
    });
    INFO("model " << sync);
    CHECK(only.finish() == "");
  }
}

TEST_CASE("a tensor that cannot be a table, or a wrong list of rows, is refused with the reason") {
  Daemon daemon;
  const auto optimize = [](pbox_options& options) { options.mode = PBOX_MODE_OPTIMIZE; };
  const auto set_rows = [](uint32_t row_elements, pbox_optimizer kind) {
    return [row_elements, kind](AbiWorker& worker) {
      worker.must(pbox_set_tensor_rows(worker.context(), 0, row_elements));
      pbox_optimizer_options options;
      pbox_optimizer_options_init(&options, kind);
      if (kind != 0) worker.must(pbox_set_optimizer(worker.context(), &options));
    };
  };
  CHECK_THAT(refusal(daemon.control(), set_rows(30, PBOX_SGD), optimize),
             Catch::Contains("1000 elements, which row_elements 30 does not divide"));
  CHECK_THAT(refusal(daemon.control(), set_rows(10, PBOX_ADAM), optimize),
             Catch::Contains("makes rows of 40 bytes") && Catch::Contains("SGD or Adagrad"));
  CHECK_THAT(refusal(daemon.control(), set_rows(50, 0), [](pbox_options&) {}),
             Catch::Contains("row_elements 50 needs mode optimize"));
  CHECK_THAT(refusal(daemon.control(), set_rows(50, PBOX_SGD),
                     [](pbox_options& options) {
                       options.mode = PBOX_MODE_OPTIMIZE;
                       options.numerics = PBOX_NUMERICS_ORDERED;
                     }),
             Catch::Contains("row_elements 50 needs numerics fast"));
  const std::string worker_failure =
      WorkerProcess([&](Line&) {
        AbiWorker worker({.box = daemon.control(), .adjust = optimize});
        worker.tensor("table", 1000);
        worker.tensor("dense", 10);
        worker.must(pbox_set_tensor_rows(worker.context(), 0, 50));
        std::vector<float> table(1000), dense(10);
        worker.join_with_sgd(1, 0, table);
        const float rows[100] = {};
        const auto push = [&](uint32_t tensor, const std::vector<uint64_t>& ids,
                              const void* values) {
          return worker.must_be(
              PBOX_INVALID_ARGUMENT,
              pbox_push_pull_rows(worker.context(), tensor, ids.data(), ids.size(), values,
                                  table.data(), nullptr, nullptr));
        };
        require_contains(push(1, {0}, rows), "tensor 'dense' is not a table");
        require_contains(push(0, {0, 20}, rows), "row_ids[1] is 20, but the table has 20 rows");
        require_contains(push(0, {5, 5}, rows), "row_ids[1] is 5 after 5; they must ascend");
        require_contains(push(0, {5}, nullptr), "rows must not be NULL if row_count is 1");
        worker.leave();
      }).finish();
  CHECK(worker_failure == "");
}

}  // namespace pbox::test
