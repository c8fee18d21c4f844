// One rank that plays the trace of a model: computing is waiting for the clock, so that one core
// can hold many ranks, and exchanges are real, by libpbox's C ABI as any worker's. Backward goes
// from the last layer to the first, and each layer's gradients are pushed when they are ready; the
// next forward of a layer waits for that layer alone.
//
// Every fragment of every iteration is checked by some of its elements; at the end of a run, every
// element.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "pbox/pbox.h"
#include "perf/rack/spans.h"
#include "perf/rack/trace.h"

namespace pbox::perf {

struct PlayedRun {
  // From the start of one forward to that of the next: its first layer's parameters are there. The
  // first iteration of a run is left out, for nothing was under way when it began.
  std::vector<double> iteration_ms;
  uint64_t wrong = 0;  // elements
  std::vector<Span> spans;
};

class Player {
 public:
  // Joins the job: returns when all ranks have. Throws std::runtime_error, as play does.
  explicit Player(const PlayerOptions& options);
  ~Player();
  Player(const Player&) = delete;
  Player& operator=(const Player&) = delete;

  // At least two iterations, begun by all ranks together; `compute_ms` is what one takes without
  // any waiting, a third of it forward.
  PlayedRun play(uint32_t iterations, double compute_ms, bool with_spans);

  pbox_statistics statistics() const;

 private:
  struct Tensor {
    std::span<float> gradient, sum;
    uint32_t first_index = 0;
    bool under_way = false;
    uint64_t started_ns = 0;
    std::atomic<uint64_t> done_ns{0};  // written by the library's thread
  };

  void require(pbox_status status) const;
  void join(const PlayerOptions& options, const std::vector<uint64_t>& elements);
  void forward(double forward_ms);
  void backward(double backward_ms);
  void push(uint32_t tensor_id);
  void finish(uint32_t tensor_id);
  void stamp(Tensor& tensor);
  uint64_t count_wrong(const Tensor& tensor, bool all) const;
  void compute(SpanKind kind, uint32_t layer, double ms);
  void add_chunk_spans();

  PlayerOptions options_;
  std::vector<PlayedLayer> layers_;
  uint32_t tensor_count_ = 0;
  std::unique_ptr<Tensor[]> tensors_;  // [tensor_count_]
  std::vector<float> gradients_, sums_;
  pbox_context* context_ = nullptr;
  uint32_t iteration_ = 0;  // iteration of the job
  uint64_t clock_ns_ = 0;   // where computing is: time lost by a late wake-up is made up
  uint64_t wrong_ = 0;
  bool with_spans_ = false;
  std::vector<Span> spans_;
};

}  // namespace pbox::perf
