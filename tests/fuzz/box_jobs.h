// The jobs of fuzz_box, and packets that its workers would send.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "pipeline/engine.h"
#include "tests/fuzz/input.h"

namespace pbox::fuzz {

constexpr uint32_t kPipeline = 5;
constexpr uint32_t kFragmentBytes = limits::kFragmentBytesMin;

struct JobShape {
  uint32_t job = 0;
  uint32_t workers = 2;
  bool is_collective = false;  // then chunks are slots (box_slots.h), and elements are bytes
  uint8_t seed = 0;            // from which slots' rounds are drawn
  uint32_t elements = 200;     // elements of each chunk
  uint32_t chunks = 2;         // ids [0, chunks); chunk id `chunks` belongs to another pipeline
  wire::Dtype dtype = wire::Dtype::kF32;
  pipeline::Mode mode = pipeline::Mode::kAggregate;
  pipeline::Reduction reduction = pipeline::Reduction::kSum;
  optimizer::OptimizerKind optimizer = {};
  wire::SyncSpec sync = {};
  bool partial = false;
  bool weighted = false;  // pushes have weights, which do not multiply their values
  bool takes_zeros = false;
  wire::Delivery delivery = wire::Delivery::kBroadcast;
  uint32_t first_round = 0;                // first round of every chunk
  uint32_t copy_rank = pipeline::kNoRank;  // rank that gives back chunk 0
  std::array<uint8_t, 4> admissions = {};  // by rank; each admission gets a new session number
  std::array<bool, 4> absent = {};         // by rank
  uint16_t generations = 0;                // changes of membership since the job began

  uint32_t chunk_bytes() const { return elements * wire::dtype_bytes(dtype); }
  uint32_t fragments() const;
  uint32_t epoch() const { return 40 + job; }
  uint16_t generation() const { return static_cast<uint16_t>(50 + job + generations); }
  uint32_t spi(uint32_t rank) const {
    return (0x70u + job) << 24 | (admissions[rank] & 31u) << 19 |
           kPipeline << pipeline::kSpiPipelineShift | job * 16 | rank;
  }
  uint32_t present() const;
  bool is_bsp() const { return sync.model == wire::SyncModel::kBsp; }
  bool drops() const { return sync.model == wire::SyncModel::kDrop; }
  // Returns whether pushes after the initial weights are applied on arrival.
  bool applies_on_arrival() const { return wire::applies_on_arrival(sync.model); }
};

JobShape read_shape(Input& input, uint32_t job);
pipeline::ShardSpec spec_of(const JobShape& shape, uint32_t credit_bytes);

struct Place {
  uint32_t rank = 0;
  uint32_t chunk = 0;
  uint32_t round = 0;
  uint32_t fragment = 0;
};

// These make packets without a tag: the header, then the payload.
std::vector<std::byte> push_packet(const JobShape& shape, const Place& place, uint64_t number,
                                   uint8_t value);
std::vector<std::byte> pull_packet(const JobShape& shape, const Place& place, uint64_t number,
                                   uint64_t held_mask);
// Makes a packet that names fragments of a push as zero.
std::vector<std::byte> zeros_packet(const JobShape& shape, const Place& place, uint64_t number,
                                    uint64_t mask);
// Appends the packet's tag. The packet's first bytes serve as its header. The tag is zeros if the
// length in that header is wrong.
void append_tag(std::vector<std::byte>& packet);

}  // namespace pbox::fuzz
