// The trace that the ranks of a rack play: a model's layers in forward order. The tensors are
// scaled down to what the machine can carry. Each layer has its share of the computing time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "perf/models.h"

namespace pbox::perf {

struct PlayerOptions {
  std::string box;  // HOST:PORT, or several separated by commas
  std::string job;
  uint32_t rank = 0;
  uint32_t worker_count = 1;
  std::string model = "resnet50";
  uint32_t scale = 1;        // each tensor keeps one in `scale` of its elements
  uint32_t chunk_bytes = 0;  // as in pbox_options, like window_bytes
  uint32_t window_bytes = 0;
  std::string policy = "explicit";     // or "fifo", "forward-order"
  std::string delivery = "broadcast";  // or "pull"
  bool recovers = false;               // the job's parts can continue at another box
  std::string optimizer = "none";      // or "sgd", "nesterov", "adam": mode optimize
};

// A layer of the model at the scale of the run.
struct PlayedLayer {
  std::string name;
  double share = 0;  // share of the forward time and of the backward time
  uint32_t first_tensor = 0;
  uint32_t tensor_count = 0;
};

// Returns the layers at the given scale. Sets `elements` to the element count of every tensor, in
// forward order.
std::vector<PlayedLayer> played_layers(const std::vector<ModelLayer>& layers, uint32_t scale,
                                       std::vector<uint64_t>& elements);

// Returns the bytes of all tensors. Throws std::runtime_error if there is no such model.
uint64_t played_bytes(const std::string& model, uint32_t scale);

}  // namespace pbox::perf
