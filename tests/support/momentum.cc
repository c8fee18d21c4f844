#include "tests/support/momentum.h"

#include "tests/support/sums.h"

namespace pbox::test {
namespace {

constexpr uint64_t kElements = 20001;
constexpr uint32_t kRanks = 2;  // in each rack
constexpr uint32_t kRounds = 8;
constexpr uint32_t kSlowFrom = 4;  // the first round with the second learning rate

// Momentum SGD as torch.optim.SGD defines it. Gradients are multiples of 1/4 and all factors are
// powers of two, so the arithmetic is exact and independent of the order of operations.
struct Oracle {
  const uint32_t workers;
  std::vector<float> weights = std::vector<float>(kElements);
  std::vector<float> velocity = std::vector<float>(kElements, 0.0f);

  explicit Oracle(uint32_t all_workers) : workers(all_workers) {
    for (uint64_t index = 0; index < kElements; ++index) weights[index] = initial(0, index);
  }
  static float initial(uint32_t rank, uint64_t index) {
    return static_cast<float>(index % 64) - 8 + static_cast<float>(100 * rank);
  }
  void step(uint32_t round) {
    const float rate = round < kSlowFrom ? 0.5f : 0.125f;
    for (uint64_t index = 0; index < kElements; ++index) {
      float mean = 0;
      for (uint32_t rank = 0; rank < workers; ++rank) mean += sums_value(rank, round, 0, index);
      mean /= static_cast<float>(workers);
      velocity[index] = 0.5f * velocity[index] + mean;
      weights[index] -= rate * velocity[index];
    }
  }
};

// `rank`: among the ranks of all racks.
void train(const std::vector<std::string>& racks, uint32_t rank, const std::string& port) {
  AbiWorker worker({.box = racks[rank / kRanks],
                    .rank = rank % kRanks,
                    .world_size = kRanks,
                    .adjust = [&](auto& options) {
                      options.port = port.c_str();
                      options.mode = PBOX_MODE_OPTIMIZE;
                      options.reduction = PBOX_MEAN;
                    }});
  const uint32_t tensor = worker.tensor("weights", kElements);
  pbox_optimizer_options optimizer;
  pbox_optimizer_options_init(&optimizer, PBOX_MOMENTUM);
  optimizer.learning_rate = 0.5f;
  optimizer.momentum = 0.5f;
  worker.must(pbox_set_optimizer(worker.context(), &optimizer));
  worker.join();

  std::vector<float> weights(kElements), gradient(kElements);
  require_contains(worker.must_be(PBOX_INVALID_ARGUMENT,
                                  pbox_push_pull(worker.context(), tensor, gradient.data(),
                                                 weights.data(), nullptr, nullptr)),
                   "pbox_init_weights");
  for (uint64_t index = 0; index < kElements; ++index) {
    weights[index] = Oracle::initial(rank, index);
  }
  worker.must(pbox_init_weights(worker.context(), tensor, weights.data(), nullptr, nullptr));
  worker.wait(tensor);
  Oracle oracle(static_cast<uint32_t>(racks.size()) * kRanks);
  require(weights == oracle.weights, "initial weights are not rank 0's");
  for (uint32_t round = 0; round < kRounds; ++round) {
    // One rank's call is enough, because no round can finish without this rank's push.
    if (round == kSlowFrom && rank == 1) {
      worker.must(pbox_set_learning_rate(worker.context(), 0.125f));
    }
    for (uint64_t index = 0; index < kElements; ++index) {
      gradient[index] = sums_value(rank, round, 0, index);
    }
    worker.push_pull(tensor, gradient.data(), weights.data());
    worker.wait(tensor);
    oracle.step(round);
    require(weights == oracle.weights, "wrong weights in round " + std::to_string(round));
  }
  worker.leave();
}

}  // namespace

std::string run_momentum(const std::vector<std::string>& racks, bool as_nobody,
                         const std::string& port) {
  std::vector<WorkerProcess> workers;
  for (uint32_t rank = 0; rank < racks.size() * kRanks; ++rank) {
    workers.emplace_back([&, rank](Line&) {
      if (as_nobody) become_nobody();
      train(racks, rank, port);
    });
  }
  std::string failure;
  for (auto& worker : workers) failure += worker.finish();
  return failure;
}

}  // namespace pbox::test
