#include "appliance/placement/place.h"

#include <algorithm>

#include "appliance/placement/largest_first.h"
#include "base/check.h"

namespace pbox::placement {
namespace {

// A box, and when it would finish if it took one more chunk of the current size.
struct Candidate {
  double done_seconds;
  BoxIndex box;

  // std::make_heap keeps the greatest element in front: the box that finishes first, and the lower
  // index of two equal ones.
  bool operator<(const Candidate& other) const {
    return done_seconds != other.done_seconds ? done_seconds > other.done_seconds : box > other.box;
  }
};

std::vector<Candidate> candidates_for(uint32_t bytes, const std::vector<BoxLoad>& loads) {
  std::vector<Candidate> heap;
  for (size_t box = 0; box < loads.size(); ++box) {
    const BoxLoad& load = loads[box];
    if (load.bytes_per_second <= 0) continue;
    heap.push_back({(load.bytes + bytes) / load.bytes_per_second, static_cast<BoxIndex>(box)});
  }
  PBOX_CHECK(!heap.empty());
  std::make_heap(heap.begin(), heap.end());
  return heap;
}

}  // namespace

void place_largest_first(std::span<const uint32_t> chunk_bytes, std::vector<uint32_t> chunks,
                         std::vector<BoxLoad>& loads, std::vector<BoxIndex>& box_of_chunk) {
  // The heap's keys are valid for one chunk size. Among chunks of equal size only the box just
  // chosen changes its key.
  std::vector<Candidate> heap;
  uint32_t heap_bytes = 0;
  for (const uint32_t chunk : largest_first(chunk_bytes, std::move(chunks))) {
    const uint32_t bytes = chunk_bytes[chunk];
    if (heap.empty() || bytes != heap_bytes) {
      heap = candidates_for(bytes, loads);
      heap_bytes = bytes;
    }
    std::pop_heap(heap.begin(), heap.end());
    const BoxIndex box = heap.back().box;
    PBOX_CHECK(chunk < box_of_chunk.size() && box < loads.size());
    PBOX_DCHECK(loads[box].bytes_per_second > 0);
    box_of_chunk[chunk] = box;
    BoxLoad& load = loads[box];
    load.bytes += bytes;
    heap.back().done_seconds = (load.bytes + bytes) / load.bytes_per_second;
    std::push_heap(heap.begin(), heap.end());
  }
}

}  // namespace pbox::placement
