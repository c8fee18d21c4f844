// Assigns the chunks of a job to boxes and their pipelines: pure functions of sizes and capacities.
// Any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace pbox::placement {

using BoxIndex = uint16_t;
inline constexpr BoxIndex kNoBox = 0xffff;  // for a chunk that is not placed yet

enum class BoxState {
  kActive,
  kStandby,   // ready, but owns no chunks
  kDraining,  // about to leave: loses its chunks and gets no new ones
};

struct Box {
  std::string name;             // for error messages and reasons
  double bytes_per_second = 0;  // rate that it can serve, measured or declared; > 0 and finite
  BoxState state = BoxState::kActive;
};

// The load of a box while chunks are assigned to it.
struct BoxLoad {
  double bytes = 0;
  double bytes_per_second = 0;  // 0: takes no chunks
};

// Places `chunks` (indices into `chunk_bytes`), largest first and chunks of equal size in the given
// order, each onto the box that would then finish first: LPT on uniform machines (Gonzalez, Ibarra,
// Sahni 1977: less than twice the best makespan). If two boxes would finish at the same time, the
// lower index takes the chunk. Adds to `loads` and writes box_of_chunk[chunk]. At least one box
// must take chunks. With n chunks of d different sizes and b boxes it takes O(n log b + d b); a
// model has about one size per tensor, and one more for the remainders.
void place_largest_first(std::span<const uint32_t> chunk_bytes, std::vector<uint32_t> chunks,
                         std::vector<BoxLoad>& loads, std::vector<BoxIndex>& box_of_chunk);

}  // namespace pbox::placement
