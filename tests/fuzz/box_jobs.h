// The jobs of fuzz_box, and packets that its workers would send.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "pipeline/core.h"
#include "tests/fuzz/input.h"

namespace pbox::fuzz {

constexpr uint32_t kPipeline = 5;
constexpr uint32_t kFragmentBytes = limits::kFragmentBytesMin;

struct JobShape {
  uint32_t job = 0;
  uint32_t workers = 2;
  uint32_t elements = 200;  // of each chunk
  uint32_t chunks = 2;      // ids [0, chunks); chunk id `chunks` belongs to another pipeline
  wire::Dtype dtype = wire::Dtype::kF32;
  pipeline::Mode mode = pipeline::Mode::kAggregate;
  pipeline::Reduction reduction = pipeline::Reduction::kSum;
  optimizer::OptimizerKind optimizer = {};

  uint32_t chunk_bytes() const { return elements * wire::dtype_bytes(dtype); }
  uint32_t fragments() const;
  uint32_t epoch() const { return 40 + job; }
  uint16_t generation() const { return static_cast<uint16_t>(50 + job); }
  uint32_t spi(uint32_t rank) const {
    return (0x70u + job) << 24 | kPipeline << pipeline::kSpiPipelineShift | job * 16 | rank;
  }
};

JobShape read_shape(Input& input, uint32_t job);
pipeline::ShardSpec spec_of(const JobShape& shape, uint32_t credit_bytes);

struct Place {
  uint32_t rank = 0;
  uint32_t chunk = 0;
  uint32_t round = 0;
  uint32_t fragment = 0;
};

// Packets without their tag: header, then payload.
std::vector<std::byte> push_packet(const JobShape& shape, const Place& place, uint64_t number,
                                   uint8_t value);
std::vector<std::byte> pull_packet(const JobShape& shape, const Place& place, uint64_t number,
                                   uint64_t held_mask);
// Ends the packet with the tag that its first bytes, taken as a header, ask for.
void append_tag(std::vector<std::byte>& packet);

}  // namespace pbox::fuzz
