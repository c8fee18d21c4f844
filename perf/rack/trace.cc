#include "perf/rack/trace.h"

#include <numeric>
#include <stdexcept>

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

uint64_t played_bytes(const std::string& model, uint32_t scale) {
  const auto layers = layers_by_name(model);
  if (!layers) throw std::runtime_error(layers.error().message);
  std::vector<uint64_t> elements;
  played_layers(*layers, scale, elements);
  return 4 * std::accumulate(elements.begin(), elements.end(), uint64_t{0});
}

}  // namespace pbox::perf
