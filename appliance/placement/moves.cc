#include "appliance/placement/moves.h"

#include <limits>
#include <numeric>
#include <utility>

#include "appliance/placement/largest_first.h"
#include "base/check.h"

namespace pbox::placement {
namespace {

// Returns the bytes that each box owns above its share; for a box that takes no chunks, all its
// bytes.
std::vector<double> surplus_bytes(const std::vector<double>& bytes,
                                  std::span<const double> bytes_per_second, Leveling leveling) {
  const double total = std::accumulate(bytes.begin(), bytes.end(), 0.0);
  const double rate = std::accumulate(bytes_per_second.begin(), bytes_per_second.end(), 0.0);
  PBOX_CHECK(rate > 0);
  std::vector<double> surplus(bytes.size());
  for (size_t box = 0; box < bytes.size(); ++box) {
    if (bytes_per_second[box] <= 0) {
      surplus[box] = bytes[box];
    } else if (leveling == Leveling::kFull) {
      surplus[box] = bytes[box] - total * bytes_per_second[box] / rate;
    }
  }
  return surplus;
}

// Levelling leaves a box above its share by less than one chunk. Moves one more chunk off the
// slowest box, again and again, as long as the job becomes faster by it. Each box gives away at
// most one chunk, its smallest.
void level_remainders(std::span<const uint32_t> chunk_bytes, std::vector<BoxLoad>& loads,
                      std::vector<BoxIndex>& placed) {
  constexpr auto kNone = std::numeric_limits<uint32_t>::max();
  std::vector<uint32_t> smallest(loads.size(), kNone);
  for (uint32_t chunk = 0; chunk < chunk_bytes.size(); ++chunk) {
    uint32_t& own = smallest[placed[chunk]];
    if (own == kNone || chunk_bytes[chunk] < chunk_bytes[own]) own = chunk;
  }
  const auto seconds = [&](size_t box, double more_bytes) {
    return (loads[box].bytes + more_bytes) / loads[box].bytes_per_second;
  };
  for (size_t turn = 0; turn < loads.size(); ++turn) {
    size_t slowest = 0;
    double slowest_seconds = -1;
    for (size_t box = 0; box < loads.size(); ++box) {
      if (loads[box].bytes_per_second <= 0 || seconds(box, 0) <= slowest_seconds) continue;
      slowest = box;
      slowest_seconds = seconds(box, 0);
    }
    const uint32_t chunk = std::exchange(smallest[slowest], kNone);
    if (chunk == kNone) return;
    size_t taker = slowest;
    double taker_seconds = slowest_seconds;
    for (size_t box = 0; box < loads.size(); ++box) {
      if (box == slowest || loads[box].bytes_per_second <= 0) continue;
      if (seconds(box, chunk_bytes[chunk]) >= taker_seconds) continue;
      taker = box;
      taker_seconds = seconds(box, chunk_bytes[chunk]);
    }
    if (taker == slowest) return;
    loads[slowest].bytes -= chunk_bytes[chunk];
    loads[taker].bytes += chunk_bytes[chunk];
    placed[chunk] = static_cast<BoxIndex>(taker);
  }
}

}  // namespace

std::vector<double> bytes_by_box(std::span<const uint32_t> chunk_bytes,
                                 std::span<const BoxIndex> box_of_chunk, size_t box_count) {
  std::vector<double> bytes(box_count);
  for (size_t chunk = 0; chunk < chunk_bytes.size(); ++chunk) {
    PBOX_CHECK(box_of_chunk[chunk] < box_count);
    bytes[box_of_chunk[chunk]] += chunk_bytes[chunk];
  }
  return bytes;
}

std::vector<Move> moves_for(std::span<const uint32_t> chunk_bytes,
                            std::span<const BoxIndex> box_of_chunk,
                            std::span<const double> bytes_per_second, Leveling leveling) {
  PBOX_CHECK(chunk_bytes.size() == box_of_chunk.size());
  const size_t box_count = bytes_per_second.size();
  const std::vector<double> bytes = bytes_by_box(chunk_bytes, box_of_chunk, box_count);
  std::vector<double> surplus = surplus_bytes(bytes, bytes_per_second, leveling);
  std::vector<uint32_t> givers;
  for (uint32_t chunk = 0; chunk < chunk_bytes.size(); ++chunk) {
    if (chunk_bytes[chunk] <= surplus[box_of_chunk[chunk]]) givers.push_back(chunk);
  }
  std::vector<BoxLoad> loads;
  for (size_t box = 0; box < box_count; ++box) {
    loads.push_back({bytes[box], bytes_per_second[box]});
  }
  std::vector<uint32_t> taken;
  for (const uint32_t chunk : largest_first(chunk_bytes, std::move(givers))) {
    const BoxIndex box = box_of_chunk[chunk];
    if (chunk_bytes[chunk] > surplus[box]) continue;
    surplus[box] -= chunk_bytes[chunk];
    loads[box].bytes -= chunk_bytes[chunk];
    taken.push_back(chunk);
  }
  std::vector<BoxIndex> placed(box_of_chunk.begin(), box_of_chunk.end());
  place_largest_first(chunk_bytes, std::move(taken), loads, placed);
  if (leveling == Leveling::kFull) level_remainders(chunk_bytes, loads, placed);
  std::vector<Move> moves;
  for (uint32_t chunk = 0; chunk < chunk_bytes.size(); ++chunk) {
    if (placed[chunk] != box_of_chunk[chunk]) {
      PBOX_DCHECK(bytes_per_second[placed[chunk]] > 0);
      moves.push_back({chunk, box_of_chunk[chunk], placed[chunk]});
    }
  }
  return moves;
}

std::vector<double> moved_bytes_by_box(std::span<const uint32_t> chunk_bytes,
                                       std::span<const Move> moves, size_t box_count) {
  std::vector<double> bytes(box_count);
  for (const Move& move : moves) {
    PBOX_CHECK(move.from < box_count && move.to < box_count);
    PBOX_CHECK(move.chunk < chunk_bytes.size());
    bytes[move.from] += chunk_bytes[move.chunk];
    bytes[move.to] += chunk_bytes[move.chunk];
  }
  return bytes;
}

}  // namespace pbox::placement
