#include "perf/rack/trace.h"

namespace pbox::perf {

std::vector<PlayedLayer> played_layers(const std::vector<ModelLayer>& layers, uint32_t scale,
                                       std::vector<uint64_t>& elements) {
  double all = 0;
  for (const ModelLayer& layer : layers) all += layer.multiply_adds;
  std::vector<PlayedLayer> played;
  elements.clear();
  for (const ModelLayer& layer : layers) {
    played.push_back({.name = layer.name,
                      .share = layer.multiply_adds / all,
                      .first_tensor = static_cast<uint32_t>(elements.size()),
                      .tensor_count = static_cast<uint32_t>(layer.tensors.size())});
    for (const ModelTensor& tensor : layer.tensors) {
      elements.push_back((tensor.elements + scale - 1) / scale);
    }
  }
  return played;
}

}  // namespace pbox::perf
