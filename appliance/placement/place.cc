#include "appliance/placement/place.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "appliance/placement/chunk_map.h"
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

Status check(std::span<const Box> boxes) {
  if (boxes.size() >= kNoBox) {
    return Error{ErrorCode::kInvalidArgument,
                 "boxes: " + std::to_string(boxes.size()) + " are too many; name fewer than 65535"};
  }
  bool any_active = false;
  for (const Box& box : boxes) {
    any_active |= box.state == BoxState::kActive;
    if (!std::isfinite(box.bytes_per_second) || box.bytes_per_second <= 0) {
      return Error{ErrorCode::kInvalidArgument,
                   "box " + box.name +
                       ": bytes_per_second = " + std::to_string(box.bytes_per_second) +
                       "; it must be a finite number above 0, the rate that the box can serve"};
    }
    if (box.loads_bytes.empty() || box.loads_bytes.size() > 255) {
      return Error{ErrorCode::kInvalidArgument, "box " + box.name + ": " +
                                                    std::to_string(box.loads_bytes.size()) +
                                                    " pipelines; a box has 1 to 255"};
    }
  }
  if (!any_active) {
    return Error{ErrorCode::kUnavailable, "boxes: none of " + std::to_string(boxes.size()) +
                                              " is active; activate one, or end its drain"};
  }
  return ok_status();
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

Result<JobPlacement> place_job(std::span<const uint32_t> chunk_bytes, std::span<const Box> boxes) {
  const Status usable = check(boxes);
  if (!usable) return usable.error();
  std::vector<BoxLoad> loads;
  for (const Box& box : boxes) {
    const uint64_t others =
        std::accumulate(box.loads_bytes.begin(), box.loads_bytes.end(), uint64_t{0});
    loads.push_back(
        {static_cast<double>(others), box.state == BoxState::kActive ? box.bytes_per_second : 0.0});
  }
  JobPlacement placement{std::vector<BoxIndex>(chunk_bytes.size(), kNoBox),
                         std::vector<uint8_t>(chunk_bytes.size())};
  std::vector<uint32_t> all(chunk_bytes.size());
  std::iota(all.begin(), all.end(), 0u);
  place_largest_first(chunk_bytes, std::move(all), loads, placement.box_of_chunk);

  std::vector<std::vector<uint32_t>> chunks_of_box(boxes.size());
  for (uint32_t chunk = 0; chunk < chunk_bytes.size(); ++chunk) {
    PBOX_CHECK(placement.box_of_chunk[chunk] < boxes.size());
    chunks_of_box[placement.box_of_chunk[chunk]].push_back(chunk);
  }
  for (size_t box = 0; box < boxes.size(); ++box) {
    std::vector<uint32_t> bytes;
    for (const uint32_t chunk : chunks_of_box[box]) bytes.push_back(chunk_bytes[chunk]);
    const std::vector<uint8_t> pipelines = assign_chunks(bytes, boxes[box].loads_bytes);
    for (size_t i = 0; i < pipelines.size(); ++i) {
      placement.pipeline_of_chunk[chunks_of_box[box][i]] = pipelines[i];
    }
  }
  return placement;
}

}  // namespace pbox::placement
