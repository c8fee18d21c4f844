// Decides which chunks must change boxes so that a map fits the rates of the boxes. Pure; any
// thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "appliance/placement/place.h"

namespace pbox::placement {

struct Move {
  uint32_t chunk;
  BoxIndex from;
  BoxIndex to;

  bool operator==(const Move&) const = default;
};

// Returns the bytes on each box. Every chunk must be on one of `box_count` boxes.
std::vector<double> bytes_by_box(std::span<const uint32_t> chunk_bytes,
                                 std::span<const BoxIndex> box_of_chunk, size_t box_count);

// Says whether boxes that take chunks are levelled to equal finishing times.
enum class Leveling {
  kNone,  // they keep their chunks
  kFull,  // a box above its share, in proportion to the rates, gives up the surplus
};

// Returns the moves in the order of chunks. A box of rate 0 loses all its chunks. A box above its
// share loses the largest chunks that fit into the surplus. The removed chunks are placed largest
// first. Then the slowest box gives away one more chunk, as long as the job becomes faster by it.
// At least one rate must be above 0. As fast as place_largest_first().
std::vector<Move> moves_for(std::span<const uint32_t> chunk_bytes,
                            std::span<const BoxIndex> box_of_chunk,
                            std::span<const double> bytes_per_second, Leveling leveling);

// Returns, by box, the bytes that it has to send and receive for these moves.
std::vector<double> moved_bytes_by_box(std::span<const uint32_t> chunk_bytes,
                                       std::span<const Move> moves, size_t box_count);

}  // namespace pbox::placement
