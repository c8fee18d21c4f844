#include "tests/sim/rack.h"

#include <algorithm>

namespace pbox::sim {

JobModel::JobModel(uint64_t seed, uint32_t index, const JobOptions& options, HostId first_host)
    : index(index),
      options(options),
      first_host(first_host),
      name("job" + std::to_string(index)),
      gradients(seed, index, options),
      oracle(gradients) {
  const uint32_t chunk_elements = options.chunk_bytes / element_bytes();
  for (uint32_t tensor = 0; tensor < options.tensors.size(); ++tensor) {
    const uint32_t elements = options.tensors[tensor].elements;
    for (uint32_t first = 0; first < elements; first += chunk_elements) {
      chunks.push_back({tensor, first, std::min(chunk_elements, elements - first)});
    }
  }
}

const std::byte* JobModel::expected(const Chunk& chunk, uint32_t round) {
  return oracle.result(chunk.tensor, round).data() + size_t{chunk.first_element} * element_bytes();
}

}  // namespace pbox::sim
