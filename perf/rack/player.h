// One rank that plays the trace of a model. Computing only waits for the clock, so that one core
// can hold many ranks. Exchanges are real and use libpbox's C ABI, as any worker does. Backward
// goes from the last layer to the first and pushes each layer's gradients when they are ready. The
// next forward of a layer waits for that layer alone.
//
// In every iteration the rank checks 16 elements in every 8 KiB of each tensor. At the end of a run
// it checks every element. In mode optimize it knows the weights from its own steps (oracle.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pbox/pbox.h"
#include "perf/rack/oracle.h"
#include "perf/rack/spans.h"
#include "perf/rack/trace.h"

namespace pbox::perf {

struct PlayedRun {
  // Times from the start of one forward to the start of the next. A forward starts when its first
  // layer's parameters are in place. The first iteration of a run is not included, because nothing
  // was in flight when it began.
  std::vector<double> iteration_ms;
  uint64_t wrong = 0;  // elements
  std::vector<Span> spans;
};

class Player {
 public:
  // Joins the job and returns when all ranks have joined. Throws std::runtime_error, like play().
  explicit Player(const PlayerOptions& options);
  ~Player();
  Player(const Player&) = delete;
  Player& operator=(const Player&) = delete;

  // Plays at least two iterations; all ranks begin together. `compute_ms` is the time of an
  // iteration without any waiting. One third of it is forward.
  PlayedRun play(uint32_t iterations, double compute_ms, bool with_spans);

  pbox_statistics statistics() const;

 private:
  struct Tensor {
    std::span<float> gradient, sum;
    uint32_t first_index = 0;
    bool under_way = false;
    uint64_t started_ns = 0;
    std::atomic<uint64_t> done_ns{0};      // written by the library's thread
    std::optional<WeightOracle> oracle{};  // steps the elements that change in every iteration
  };

  void require(pbox_status status) const;
  void join(const PlayerOptions& options, const std::vector<uint64_t>& elements);
  void set_optimizer();
  void init_weights();
  bool optimizes() const { return spec_.kind != optimizer::OptimizerKind::kNone; }
  void forward(double forward_ms);
  void backward(double backward_ms);
  void push(uint32_t tensor_id);
  void finish(uint32_t tensor_id);
  void stamp(Tensor& tensor);
  void step(Tensor& tensor);
  uint64_t count_wrong(const Tensor& tensor, bool all) const;
  uint64_t count_wrong_weights(const Tensor& tensor, bool all) const;
  void compute(SpanKind kind, uint32_t layer, double ms);
  void add_chunk_spans();

  PlayerOptions options_;
  optimizer::OptimizerSpec spec_;
  std::vector<PlayedLayer> layers_;
  uint32_t tensor_count_ = 0;
  std::unique_ptr<Tensor[]> tensors_;  // [tensor_count_]
  std::vector<float> gradients_, sums_;
  pbox_context* context_ = nullptr;
  uint32_t iteration_ = 0;  // iteration of the job
  uint64_t clock_ns_ = 0;   // simulated time of the computing; a late wake-up does not delay it
  uint64_t wrong_ = 0;
  // The gradients that never change have only kPatternBaseMax values. This oracle has one element
  // for each of these values.
  std::optional<WeightOracle> still_oracle_;
  bool with_spans_ = false;
  std::vector<Span> spans_;
};

}  // namespace pbox::perf
