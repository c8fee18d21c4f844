#include "worker/membership/part_layout.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "nic/wire/chunk_layout.h"

namespace pbox::worker {

std::vector<std::vector<Piece>> cut_into_parts(const std::vector<TensorSpec>& tensors,
                                               uint32_t chunk_bytes, uint32_t parts) {
  PBOX_CHECK(chunk_bytes > 0 && parts > 0);
  std::vector<std::vector<Piece>> pieces(parts);
  std::vector<uint64_t> loads(parts, 0);  // bytes
  std::vector<uint32_t> lightest(parts);
  for (uint32_t tensor = 0; tensor < tensors.size(); ++tensor) {
    const uint32_t element_bytes = wire::dtype_bytes(tensors[tensor].dtype);
    const uint64_t bytes = tensors[tensor].elements * element_bytes;
    const uint64_t chunks = wire::chunk_count(bytes, chunk_bytes);
    std::vector<uint64_t> counts(parts, chunks / parts);
    std::iota(lightest.begin(), lightest.end(), 0u);
    std::stable_sort(lightest.begin(), lightest.end(),
                     [&](uint32_t a, uint32_t b) { return loads[a] < loads[b]; });
    for (uint64_t extra = 0; extra < chunks % parts; ++extra) ++counts[lightest[extra]];
    uint64_t offset = 0;
    for (uint32_t part = 0; part < parts; ++part) {
      if (counts[part] == 0) continue;
      const uint64_t end = std::min(bytes, offset + counts[part] * chunk_bytes);
      pieces[part].push_back({tensor, offset / element_bytes, (end - offset) / element_bytes});
      loads[part] += end - offset;
      offset = end;
    }
    PBOX_CHECK(offset == bytes);
  }
  return pieces;
}

}  // namespace pbox::worker
