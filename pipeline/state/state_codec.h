// The state of a chunk in mode optimize. Only this file knows how weights, optimizer state and
// counters are laid out. A live chunk, a snapshot's cut and file, a backup block and a message
// between boxes are all written and read through encode() and decode().
//
// Every form is an array of f32 in sections:
//
//   packed  weights, optimizer state
//           ChunkState::values, StateCut, snapshots' files, messages between boxes
//   block   weights, optimizer state, clocks if the job is relaxed, counters, each beginning on a
//           cache line
//           the memory of a replicated chunk, which travels to the backup box as one tensor of f32
//
// The optimizer state is [slots][elements], for Adam all of the first moment and then all of the
// second (optimizer.h). Where pushes are applied on arrival, each fragment in turn has that form.
//
// To a backup box, blocks are tensors of a job with one rank. It sums them, which changes no bit,
// and does not know what they contain. So clocks and counters are written as numbers of 16 bits,
// which f32 represents exactly.
//
// Any thread may call everything here. Nothing does I/O. Only checksum() and functions that return
// a ChunkState or a vector allocate.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "pipeline/optimizer/optimizer.h"

namespace pbox::pipeline {

// Where the sections of a chunk's state lie. Offsets and lengths are in f32.
struct StateLayout {
  static StateLayout packed(optimizer::OptimizerKind kind, uint32_t elements);
  // `ranks`: the ranks of a relaxed job, whose clocks the block has room for; 0 in other jobs.
  static StateLayout block(optimizer::OptimizerKind kind, uint32_t elements, size_t ranks = 0);

  size_t elements = 0;         // length of the weights, which are at offset 0
  size_t optimizer_state = 0;  // offset
  size_t optimizer_floats = 0;
  size_t clocks = 0;    // offset
  size_t ranks = 0;     // 0 where the form has no clocks
  size_t counters = 0;  // offset; equals `floats` where the form has no counters
  size_t floats = 0;    // length of all sections and the padding between them

  bool has_counters() const { return counters < floats; }
};

// Returns the number of f32 in a packed state.
inline size_t state_values(optimizer::OptimizerKind kind, uint32_t elements) {
  return StateLayout::packed(kind, elements).floats;
}

// The state of one chunk whose arrays lie elsewhere.
struct StateView {
  uint32_t chunk = 0;            // job-local id
  uint64_t rounds_finished = 0;  // rounds up to the one that made these weights; 0: no state
  uint64_t steps = 0;            // optimizer steps applied to `optimizer_state`
  std::span<const float> weights;
  std::span<const float> optimizer_state;
};

// The state of one chunk, owned: what another box needs to continue the chunk.
struct ChunkState {
  uint32_t chunk = 0;            // job-local id
  uint64_t rounds_finished = 1;  // rounds up to the one that made these weights
  uint64_t steps = 0;            // optimizer steps applied to the optimizer state
  std::vector<float> values;     // packed
  // Number of workers in the last result, by fragment of `fragment_bytes`. Empty where contributors
  // are not counted.
  std::vector<uint16_t> contributors;
  uint32_t fragment_bytes = 0;
  // Relaxed jobs: kClocksPerRank numbers for each rank in turn. With models that apply on arrival
  // these are the round that the rank pushes next (UINT64_MAX: it no longer takes part), the
  // fragments of that round that are already in the weights, and whether its read is parked (0 or
  // 1). With models `drop` and BSP they are the numbers of a sync::Pushed. With models that apply
  // on arrival, the number of optimizer steps of each fragment of `fragment_bytes` follows. Empty
  // in jobs that are not relaxed.
  std::vector<uint64_t> clocks = {};
};

inline constexpr size_t kClocksPerRank = 3;

// Writes `state` to `to`, which has `layout.floats` f32. Padding keeps its values.
void encode(const StateView& state, const StateLayout& layout, std::span<float> to);

// Reads what encode() wrote; the result's arrays lie in `from`. If the form has no counters,
// rounds_finished and steps are 0. Returns nullopt if the counters are invalid.
std::optional<StateView> decode(std::span<const float> from, const StateLayout& layout);

// Returns the sections of the packed form, in order, for writers that do not need one array.
std::array<std::span<const float>, 2> packed_sections(const StateView& state);

// Converts between the optimizer state by fragments and that of the whole chunk. All fragments
// except the last have `fragment_elements`.
void join_fragments(std::span<const float> fragments, uint32_t elements, uint32_t fragment_elements,
                    std::span<float> whole);
void split_into_fragments(std::span<const float> whole, uint32_t elements,
                          uint32_t fragment_elements, std::span<float> fragments);

// Returns a state with copies of the view's arrays.
ChunkState to_chunk_state(const StateView& state);

// Writes the counters of a block whose weights and optimizer state are in place already.
void write_counters(float* block, const StateLayout& layout, uint64_t rounds_finished,
                    uint64_t steps);

// Writes the clocks of a block (ChunkState::clocks), and the contributors of its last result.
class ClockWriter {
 public:
  // `layout`: the block's layout, which has clocks.
  ClockWriter(float* block, const StateLayout& layout, uint32_t fragment_bytes);
  // Each adds the next number. There is room for kFragmentCountMax contributors and all clocks.
  void add_contributor(uint16_t count);
  void add_clock(uint64_t clock);

 private:
  float* section_;
  size_t contributors_ = 0;
  size_t clocks_ = 0;
  size_t clocks_max_;
};

// Returns a block with the state of a chunk of `elements`. `ranks`: as in StateLayout::block().
std::vector<float> encode_block(const ChunkState& state, optimizer::OptimizerKind kind,
                                uint32_t elements, size_t ranks = 0);

// Returns the state of chunk `chunk` from a block, which states its own layout. Returns nullopt if
// the block is invalid, for example because nothing was ever written to it.
std::optional<ChunkState> decode_block(std::span<const float> block, uint32_t chunk);

// The bytes that precede a packed state in a snapshot's file, little endian.
struct StateRecord {
  uint32_t chunk = 0;
  uint32_t value_count = 0;  // f32 that follow
  uint64_t steps = 0;
};
static_assert(sizeof(StateRecord) == 16);
StateRecord record_of(const StateView& state);

// Returns the CRC32C of a state's values, rounds_finished, steps and clocks, in this order. It
// protects a state that is sent between boxes in pieces.
uint32_t checksum(const ChunkState& state);

}  // namespace pbox::pipeline
