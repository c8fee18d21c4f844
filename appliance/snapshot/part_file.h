// The file of one part of a job in a snapshot. May be used on any thread; blocks for as long as the
// disk takes.
//
// Format: "PBOXSNAP"; the format's number and the size of the head in bytes (4 bytes each); the
// head as JSON; then for each chunk its number and its number of values (4 bytes each), the steps
// of its optimizer (8 bytes), and the values (f32), first the weights and then the optimizer's
// state. All integers and floats are little endian.
#pragma once

#include <atomic>
#include <map>
#include <memory>

#include "appliance/snapshot/snapshot.h"
#include "base/result.h"
#include "pipeline/state/state_cut.h"

namespace pbox::snapshot {

using Cuts = std::vector<std::shared_ptr<const pipeline::StateCut>>;

// Creates or replaces the file; it is durable when this returns. Every chunk of `cuts` must have
// been copied. Returns kUnavailable soon after `stopped` becomes true, and kSystem for an error of
// the disk. The caller fills in `box` and `name`.
Result<PartFile> write_part(const std::string& path, const PartHead& head, const Cuts& cuts,
                            const std::atomic<bool>& stopped);

// The place of a chunk in a job: the tensor's name and the chunk's index within the tensor.
using ChunkPlace = std::pair<std::string, uint64_t>;
struct PlacedChunk {
  uint32_t chunk = 0;  // its number in the part
  uint32_t elements = 0;
};
using PlacedChunks = std::map<ChunkPlace, PlacedChunk>;

// Returns the chunks of a part.
PlacedChunks chunks_of(const PartHead& head);

// Reads only the head of a part's file. kMismatch: the file is damaged. The head's checksum is
// known only once the whole file has been read, so tensors that share a name are possible.
Result<PartHead> read_head(const std::string& path, const PartFile& expected);

// Appends to `chunks` those chunks of the file that are in `wanted`, with the numbers given there
// and rounds_finished 1, and removes them from `wanted`. Only the head is read if there are none.
// kMismatch: the file's tensors, chunks or optimizer differ from those of `part`, or its contents
// differ from `expected`. Returns kUnavailable soon after `stopped` becomes true.
Status read_part(const std::string& path, const PartFile& expected, const PartHead& part,
                 const std::atomic<bool>& stopped, PlacedChunks& wanted,
                 std::vector<pipeline::ChunkState>& chunks);

}  // namespace pbox::snapshot
