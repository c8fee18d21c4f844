// Which box owns which chunk of a job, and which of its pipelines: pure functions of sizes and
// capacities. Any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace pbox::placement {

using BoxIndex = uint16_t;
inline constexpr BoxIndex kNoBox = 0xffff;  // of a chunk: not placed yet

enum class BoxState {
  kActive,
  kStandby,   // ready, owns no chunk
  kDraining,  // about to leave: loses its chunks, gets none
};

struct Box {
  std::string name;             // for errors and reasons
  double bytes_per_second = 0;  // > 0 and finite: what it can serve, as measured or declared
  BoxState state = BoxState::kActive;
  std::vector<uint64_t>
      loads_bytes;  // of each pipeline, in [1, 256): what other jobs' rounds bring
};

// What a box has to do, while chunks are put on it.
struct BoxLoad {
  double bytes = 0;
  double bytes_per_second = 0;  // 0: takes no chunk
};

// The chunks named by `chunks` (indices into `chunk_bytes`), largest first and equal ones as they
// come, each onto the box that would then be done first: LPT on uniform machines (Gonzalez, Ibarra,
// Sahni 1977: less than twice the best makespan). Of boxes done at once the lower index takes it.
// Adds to `loads` and writes box_of_chunk[chunk]. At least one box must take chunks. With n chunks
// of d different sizes and b boxes O(n log b + d b); a model has about one size per tensor, and one
// for the rest.
void place_largest_first(std::span<const uint32_t> chunk_bytes, std::vector<uint32_t> chunks,
                         std::vector<BoxLoad>& loads, std::vector<BoxIndex>& box_of_chunk);

struct JobPlacement {
  std::vector<BoxIndex> box_of_chunk;
  std::vector<uint8_t> pipeline_of_chunk;  // within its box
};

// All chunks of a job over the active boxes and their pipelines. Equal inputs give equal maps.
// kInvalidArgument: a box without a usable capacity or number of pipelines, or too many boxes;
// kUnavailable: none is active.
Result<JobPlacement> place_job(std::span<const uint32_t> chunk_bytes, std::span<const Box> boxes);

}  // namespace pbox::placement
