#include "appliance/control/recovery_plan.h"

#include <algorithm>

#include "nic/wire/header.h"

namespace pbox::control {
namespace {

// Returns the worker that needs round `next` and still has the result of the round before; end() if
// there is none.
auto holder_of(std::span<const ConsumedRounds> stated, uint32_t chunk, uint32_t next) {
  return std::find_if(stated.begin(), stated.end(), [&](const ConsumedRounds& worker) {
    return worker.rounds[chunk] == next && worker.holds(chunk);
  });
}

// Returns the lowest of the open rounds of chunks [first, end).
uint32_t least_round(const std::vector<uint32_t>& open_rounds, uint32_t first, uint32_t end) {
  uint32_t least = open_rounds[first];
  for (uint32_t chunk = first; chunk < end; ++chunk) {
    if (wire::round_distance(open_rounds[chunk], least) < 0) least = open_rounds[chunk];
  }
  return least;
}

}  // namespace

Result<std::vector<ChunkStart>> plan_recovery(std::span<const ConsumedRounds> stated,
                                              uint32_t chunk_count) {
  PBOX_CHECK(!stated.empty());
  std::vector<ChunkStart> starts(chunk_count);
  for (uint32_t chunk = 0; chunk < chunk_count; ++chunk) {
    const ConsumedRounds* most = &stated[0];
    const ConsumedRounds* least = &stated[0];
    for (const ConsumedRounds& worker : stated) {
      const uint32_t round = worker.rounds[chunk];
      if (wire::round_distance(round, most->rounds[chunk]) > 0) most = &worker;
      if (wire::round_distance(round, least->rounds[chunk]) < 0) least = &worker;
    }
    const int32_t apart = wire::round_distance(most->rounds[chunk], least->rounds[chunk]);
    if (apart > 1) {
      return Error{ErrorCode::kMismatch, "the ranks cannot have been in one job: of chunk " +
                                             std::to_string(chunk) + " rank " +
                                             std::to_string(most->rank) + " has " +
                                             std::to_string(most->rounds[chunk]) +
                                             " rounds, rank " + std::to_string(least->rank) +
                                             " has " + std::to_string(least->rounds[chunk]) +
                                             "; start all of them again, from a checkpoint"};
    }
    starts[chunk].round = least->rounds[chunk];
    if (apart == 0) continue;
    const auto holder = holder_of(stated, chunk, most->rounds[chunk]);
    if (holder != stated.end()) starts[chunk].copy_rank = holder->rank;
  }
  return starts;
}

Status open_for_newcomers(std::span<const ConsumedRounds> stated,
                          std::span<const uint32_t> chunk_counts, std::vector<ChunkStart>& starts) {
  uint32_t first = 0;
  for (const uint32_t count : chunk_counts) {
    const uint32_t end = first + count;
    uint32_t least = starts[first].round;
    for (uint32_t chunk = first; chunk < end; ++chunk) {
      if (wire::round_distance(starts[chunk].round, least) < 0) least = starts[chunk].round;
    }
    for (uint32_t chunk = first; chunk < end; ++chunk) {
      if (starts[chunk].round == least) continue;
      const auto holder = holder_of(stated, chunk, least + 1);
      if (holder == stated.end() || starts[chunk].is_copied()) {
        return Error{ErrorCode::kMismatch,
                     "a rank that takes a lost one's place needs the result of round " +
                         std::to_string(least) + " of chunk " + std::to_string(chunk) +
                         ", which was lost with the box; start all ranks again, from a checkpoint"};
      }
      starts[chunk] = {.round = least, .copy_rank = holder->rank};
    }
    first = end;
  }
  return ok_status();
}

Status open_for_weights(std::span<const ConsumedRounds> stated, std::vector<ChunkStart>& starts) {
  for (uint32_t chunk = 0; chunk < starts.size(); ++chunk) {
    ChunkStart& start = starts[chunk];
    const bool has_source = start.is_copied() || start.is_handed_over;
    if (start.round == 0 || has_source) continue;
    const auto holder = holder_of(stated, chunk, start.round);
    if (holder == stated.end()) {
      return Error{ErrorCode::kBoxLost,
                   "the weights of chunk " + std::to_string(chunk) + " after round " +
                       std::to_string(start.round - 1) +
                       " were lost with the box; start all ranks again, from a checkpoint"};
    }
    start = {.round = start.round - 1, .copy_rank = holder->rank};
  }
  return ok_status();
}

bool open_as_handed_over(std::span<const ConsumedRounds> stated, std::span<const uint64_t> finished,
                         std::vector<ChunkStart>& starts) {
  PBOX_CHECK(finished.size() == starts.size());  // indexed by the same chunks
  for (const ConsumedRounds& worker : stated) {
    for (size_t chunk = 0; chunk < starts.size(); ++chunk) {
      if (finished[chunk] == 0) continue;
      const int32_t behind =
          wire::round_distance(static_cast<uint32_t>(finished[chunk]), worker.rounds[chunk]);
      if (behind != 0 && behind != 1) return false;
    }
  }
  for (size_t chunk = 0; chunk < starts.size(); ++chunk) {
    if (finished[chunk] == 0) continue;
    starts[chunk] = {.round = static_cast<uint32_t>(finished[chunk]), .is_handed_over = true};
  }
  return true;
}

bool is_beyond(const ConsumedRounds& worker, const std::vector<ChunkStart>& starts) {
  for (size_t chunk = 0; chunk < starts.size(); ++chunk) {
    if (!starts[chunk].is_copied() && !starts[chunk].is_handed_over &&
        wire::round_distance(worker.rounds[chunk], starts[chunk].round) > 0) {
      return true;
    }
  }
  return false;
}

std::vector<uint32_t> copies_owed(const std::vector<ChunkStart>& starts, uint32_t rank,
                                  const std::vector<uint32_t>& open_rounds) {
  PBOX_CHECK(starts.empty() || starts.size() == open_rounds.size());  // by chunk
  std::vector<uint32_t> owed;
  for (uint32_t chunk = 0; chunk < starts.size(); ++chunk) {
    const bool is_open = starts[chunk].round == open_rounds[chunk];
    if (is_open && starts[chunk].copy_rank == rank) owed.push_back(chunk);
  }
  return owed;
}

std::vector<uint32_t> rounds_for_newcomer(const std::vector<ChunkStart>& starts,
                                          std::vector<uint32_t> open_rounds) {
  PBOX_CHECK(starts.empty() || starts.size() == open_rounds.size());  // by chunk
  for (uint32_t chunk = 0; chunk < starts.size(); ++chunk) {
    const bool is_open = starts[chunk].round == open_rounds[chunk];
    if (is_open && starts[chunk].is_copied()) ++open_rounds[chunk];
  }
  return open_rounds;
}

bool lacks_for_newcomer(const std::vector<ChunkStart>& starts,
                        std::span<const uint32_t> chunk_counts,
                        const std::vector<uint32_t>& open_rounds) {
  PBOX_CHECK(starts.size() == open_rounds.size());  // by chunk
  uint32_t first = 0;
  for (const uint32_t count : chunk_counts) {
    const uint32_t end = first + count;
    const uint32_t least = least_round(open_rounds, first, end);
    for (uint32_t chunk = first; chunk < end; ++chunk) {
      const bool is_first_here = open_rounds[chunk] == starts[chunk].round;
      if (open_rounds[chunk] != least && is_first_here) return true;
    }
    first = end;
  }
  return false;
}

}  // namespace pbox::control
