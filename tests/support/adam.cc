#include "tests/support/adam.h"

#include <signal.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <stdexcept>
#include <utility>

#include "pipeline/optimizer/reference.h"

namespace pbox::test {
namespace {

constexpr uint64_t kAdamElements = 400'000;
constexpr useconds_t kComputesUs = 5'000;  // pause between steps, in place of computing

#ifdef __SANITIZE_THREAD__
constexpr uint32_t kStepsEachTime = 10;
#else
constexpr uint32_t kStepsEachTime = 60;
#endif

float gradient_of(uint32_t rank, uint32_t step, uint64_t index) {
  return 0.01f * static_cast<float>((index * 7 + step * 13 + rank * 5) % 31) - 0.14f;
}

// Returns whether rank 1's gradient has an infinity in this step, with Options::skips. It is in a
// different element each time.
bool is_infinite(uint32_t step) {
  return step % 10 == 7;
}

void spoil(std::vector<float>& gradient, uint32_t rank, uint32_t step) {
  if (rank == 1 && is_infinite(step)) gradient[step * 9973 % kAdamElements] = INFINITY;
}

// Checks the verdict on the step that this rank has received.
void check_verdict(const AbiWorker& worker, uint32_t step) {
  pbox_step known{};
  known.struct_size = sizeof(known);
  worker.must(pbox_last_step(worker.context(), &known));
  double squares = 0;
  for (uint64_t index = 0; index < kAdamElements; ++index) {
    const double sum = gradient_of(0, step, index) + gradient_of(1, step, index);
    squares += sum * sum;
  }
  const double norm = std::sqrt(squares);
  const bool is_right = is_infinite(step)
                            ? known.skipped == 1 && !std::isfinite(known.norm)
                            : known.skipped == 0 && std::abs(known.norm - norm) < 1e-6 * norm;
  require(is_right && known.loss_scale == 1,
          "wrong verdict on step " + std::to_string(step) + ": round " +
              std::to_string(known.round) + ", norm " + std::to_string(known.norm) +
              " instead of " + std::to_string(norm) + ", skipped " + std::to_string(known.skipped));
}

// Computes the expected weights: applies the optimizer's definition to the sum of two gradients,
// which is the same in either order.
class Expected {
 public:
  Expected() : weights(kAdamElements, 0.5f), state_(2 * kAdamElements, 0.0f) {}
  void step(uint32_t step) {
    if (const auto loss = losses_.find(step); loss != losses_.end()) take_state_of(loss->second);
    const optimizer::OptimizerSpec adam{.kind = optimizer::OptimizerKind::kAdam,
                                        .learning_rate = 0.01f};
    const auto coefficients =
        optimizer::step_coefficients(adam, optimizer::step_parameters(adam, 1, 0, 1, ++taken_));
    for (uint64_t index = 0; index < kAdamElements; ++index) {
      const float sum = gradient_of(0, step, index) + gradient_of(1, step, index);
      optimizer::reference::adam(coefficients, weights[index], state_[index],
                                 state_[kAdamElements + index], sum);
    }
  }
  // Notes that the optimizer state is lost before `step` and replaced by the state after `older`
  // steps.
  void lose_state(uint32_t step, uint32_t older) { losses_[step] = older; }
  std::vector<float> weights;

 private:
  void take_state_of(uint32_t steps) {
    Expected older;
    older.losses_ = losses_;
    for (uint32_t step = 1; step <= steps; ++step) older.step(step);
    state_ = std::move(older.state_);
    taken_ = older.taken_;
  }
  uint32_t taken_ = 0;  // steps applied to the state
  std::map<uint32_t, uint32_t> losses_;
  std::vector<float> state_;
};

std::string describe(const pbox_statistics& statistics, const std::vector<float>& weights) {
  uint64_t hash = 0;
  for (const float weight : weights) {
    uint32_t bits = 0;
    std::memcpy(&bits, &weight, sizeof(bits));
    hash = hash * 1'000'003 + bits;
  }
  return "recoveries " + std::to_string(statistics.recoveries > 0) + " restarts " +
         std::to_string(statistics.optimizer_restarts) + " restored_from " +
         std::to_string(statistics.optimizer_snapshot) + " weights " + std::to_string(hash);
}

void train(Line& line, const AdamTraining::Options& options, uint32_t rank,
           const Progress& progress) {
  const AbiWorker worker({.box = options.box,
                          .job = options.job,
                          .rank = rank,
                          .world_size = 2,
                          .adjust = [&](auto& of_worker) {
                            of_worker.mode = PBOX_MODE_OPTIMIZE;
                            of_worker.restore = options.restore.c_str();
                            of_worker.replicas = options.replicas;
                            of_worker.keys = options.keys.c_str();
                          }});
  const uint32_t tensor = worker.tensor("weights", kAdamElements);
  pbox_optimizer_options adam;
  pbox_optimizer_options_init(&adam, PBOX_ADAM);
  adam.learning_rate = 0.01f;
  adam.skip_nonfinite = options.skips ? 1 : 0;
  worker.must(pbox_set_optimizer(worker.context(), &adam));
  worker.join();
  const pbox_statistics begun = worker.statistics();
  Expected expected;
  std::vector<float> weights = expected.weights, gradient(kAdamElements);
  worker.must(pbox_init_weights(worker.context(), tensor, weights.data(), nullptr, nullptr));
  worker.wait(tensor);
  const auto steps = static_cast<uint32_t>(begun.restored_steps);
  if (options.checks) {
    for (uint32_t step = 1; step <= steps; ++step) expected.step(step);
    require(weights == expected.weights, "the initial weights are wrong");
  }
  line.say("joined " + std::to_string(begun.restored_snapshot) + " " + std::to_string(steps));
  uint64_t restarts = 0;
  const uint32_t steps_max = options.times * kStepsEachTime;
  for (uint32_t count = 0; steps_max == 0 || count < steps_max; ++count) {
    const uint32_t step = steps + count + 1;
    if (count % kStepsEachTime == 0) line.await_go();
    for (uint64_t index = 0; index < kAdamElements; ++index) {
      gradient[index] = gradient_of(rank, step, index);
    }
    if (options.skips) spoil(gradient, rank, step);
    usleep(kComputesUs);
    worker.push_pull(tensor, gradient.data(), weights.data());
    worker.wait(tensor);
    progress.advance(rank);
    if (options.skips) check_verdict(worker, step);
    if (options.checks) {
      const pbox_statistics now = worker.statistics();
      if (std::exchange(restarts, now.optimizer_restarts) < now.optimizer_restarts) {
        expected.lose_state(step, static_cast<uint32_t>(now.optimizer_snapshot_steps));
      }
      if (!options.skips || !is_infinite(step)) expected.step(step);
      require(weights == expected.weights, "wrong weights after step " + std::to_string(step) +
                                               "; optimizer restarts " +
                                               std::to_string(now.optimizer_restarts) +
                                               ", recoveries " + std::to_string(now.recoveries));
    }
    if (count % kStepsEachTime == kStepsEachTime - 1) {
      line.say(describe(worker.statistics(), weights));
    }
  }
}

}  // namespace

AdamTraining::AdamTraining(const Options& options) {
  for (const uint32_t rank : {0u, 1u}) {
    ranks_.emplace_back(
        [=, progress = progress_](Line& line) { train(line, options, rank, progress); });
  }
  for (auto& rank : ranks_) {
    const std::string said = rank.heard().value_or("nothing");
    unsigned long snapshot = 0, steps = 0;
    if (std::sscanf(said.c_str(), "joined %lu %lu", &snapshot, &steps) != 2) {
      throw std::runtime_error(said);
    }
    restored_snapshot_ = snapshot;
    restored_steps_ = steps;
  }
}

bool AdamTraining::is_under_way() const {
  return progress_.least() < begun_at_ + kStepsEachTime;
}

void AdamTraining::begin_steps() {
  begun_at_ = progress_.least();
  for (const auto& rank : ranks_) rank.go();
}

AdamTraining::Report AdamTraining::end_steps() {
  std::vector<std::string> said;
  for (auto& rank : ranks_) said.push_back(rank.heard().value_or("nothing"));
  if (said[0] != said[1]) throw std::runtime_error(said[0] + ", but " + said[1]);
  unsigned long recoveries = 0, restarts = 0, restored_from = 0, weights = 0;
  const int fields =
      std::sscanf(said[0].c_str(), "recoveries %lu restarts %lu restored_from %lu weights %lu",
                  &recoveries, &restarts, &restored_from, &weights);
  if (fields != 4) throw std::runtime_error(said[0]);
  return {recoveries, restarts, restored_from};
}

void AdamTraining::kill() const {
  for (const auto& rank : ranks_) rank.signal(SIGKILL);
}

}  // namespace pbox::test
