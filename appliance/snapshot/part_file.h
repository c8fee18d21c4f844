// One part of a job in one file of a snapshot. Any thread; blocks for as long as the disk takes.
//
// "PBOXSNAP", then the format's number and the bytes of what follows as 4 bytes each; the head as
// JSON; then by chunk its number and how many values it has (4 bytes each), the steps that its
// optimizer has taken (8), and the values (f32), which are the weights and then the optimizer's
// state. All little endian.
#pragma once

#include <atomic>
#include <map>
#include <memory>

#include "appliance/snapshot/snapshot.h"
#include "base/result.h"
#include "pipeline/state/state_cut.h"

namespace pbox::snapshot {

using Cuts = std::vector<std::shared_ptr<const pipeline::StateCut>>;

// Makes or replaces the file, durable when this returns it. Everything of `cuts` is there. Gives up
// with kUnavailable once `stopped`. kSystem: what the disk says. `box` and `name` are the caller's.
Result<PartFile> write_part(const std::string& path, const PartHead& head, const Cuts& cuts,
                            const std::atomic<bool>& stopped);

// A tensor, and how many of its chunks come before.
using ChunkPlace = std::pair<std::string, uint64_t>;
struct PlacedChunk {
  uint32_t chunk = 0;  // its number in the part
  uint32_t elements = 0;
};
using PlacedChunks = std::map<ChunkPlace, PlacedChunk>;

// The chunks of a part.
PlacedChunks chunks_of(const PartHead& head);

// Those chunks of the file that are in `wanted`, which loses them, with the numbers given there and
// rounds_finished 1. kMismatch: the file's tensors, chunks or optimizer are others than `part`'s,
// or its bytes are not those of `expected`. Gives up with kUnavailable once `stopped`.
Status read_part(const std::string& path, const PartFile& expected, const PartHead& part,
                 const std::atomic<bool>& stopped, PlacedChunks& wanted,
                 std::vector<pipeline::ChunkState>& chunks);

}  // namespace pbox::snapshot
