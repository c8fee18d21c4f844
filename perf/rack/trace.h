// The work that the ranks of a rack play: a model's layers in forward order, cut down to what the
// machine can carry, each with its share of the computing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "perf/models.h"

namespace pbox::perf {

struct PlayerOptions {
  std::string box;  // HOST:PORT, or several
  std::string job;
  uint32_t rank = 0;
  uint32_t worker_count = 1;
  std::string model = "resnet50";
  uint32_t scale = 1;        // every tensor has one in so many of its elements
  uint32_t chunk_bytes = 0;  // as pbox_options, as the next
  uint32_t window_bytes = 0;
  std::string policy = "explicit";     // or "fifo", "forward-order"
  std::string delivery = "broadcast";  // or "pull"
  bool recovers = false;               // its parts can go on at another box
};

// A layer of the model at the scale of the run.
struct PlayedLayer {
  std::string name;
  double share = 0;  // share of the time of forward and of backward
  uint32_t first_tensor = 0;
  uint32_t tensor_count = 0;
};

// `elements` gets those of all tensors, in forward order.
std::vector<PlayedLayer> played_layers(const std::vector<ModelLayer>& layers, uint32_t scale,
                                       std::vector<uint64_t>& elements);

// Returns the bytes of all tensors. Throws std::runtime_error if there is no such model.
uint64_t played_bytes(const std::string& model, uint32_t scale);

}  // namespace pbox::perf
