#include "appliance/placement/chunk_map.h"

#include <algorithm>
#include <numeric>

#include "appliance/placement/largest_first.h"
#include "base/check.h"

namespace pbox::placement {

std::vector<uint8_t> assign_chunks(std::span<const uint32_t> chunk_bytes,
                                   std::vector<uint64_t> loads_bytes) {
  PBOX_CHECK(!loads_bytes.empty() && loads_bytes.size() < 256);
  std::vector<uint32_t> order(chunk_bytes.size());
  std::iota(order.begin(), order.end(), 0u);
  std::vector<uint8_t> bins(chunk_bytes.size());
  for (const uint32_t chunk : largest_first(chunk_bytes, std::move(order))) {
    const auto least = std::min_element(loads_bytes.begin(), loads_bytes.end());
    bins[chunk] = static_cast<uint8_t>(least - loads_bytes.begin());
    *least += chunk_bytes[chunk];
  }
  return bins;
}

}  // namespace pbox::placement
