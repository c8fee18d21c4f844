// The work of `wire`: ResNet-50's gradients over one pipeline, chunk after chunk, with a few chunks
// in flight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/numa_arena.h"
#include "pipeline/engine.h"

namespace pbox::perf {

struct WireShape {
  uint32_t workers = 4;
  uint32_t window_chunks = 8;  // chunks in flight at once
  uint32_t fragment_bytes = limits::kFragmentBytesJumbo;
};

// The box's shard of the job, and the gradients that workers push. Workers push the gradients of
// the same few chunks repeatedly, as a device reuses the same few buffers.
class WireJob {
 public:
  // Throws std::runtime_error when memory is short.
  explicit WireJob(const WireShape& shape);

  const WireShape& shape() const { return shape_; }
  pipeline::JobShard& shard() { return *shard_; }
  uint32_t chunk_count() const { return static_cast<uint32_t>(chunk_bytes_.size()); }
  uint32_t chunk_bytes(uint32_t chunk) const { return chunk_bytes_[chunk]; }
  uint32_t fragments(uint32_t chunk) const;
  uint64_t fragments_of_round() const { return fragments_of_round_; }  // fragments of all workers

  // Each payload lies as in a received frame: in a buffer of its own, behind the headers.
  const std::byte* payload(uint32_t worker, uint32_t chunk, uint32_t fragment) const {
    const size_t slot = size_t{worker} * shape_.window_chunks + chunk % shape_.window_chunks;
    return gradients_.data() + (slot * fragments_of_default_ + fragment) * buffer_bytes_ +
           kPayloadOffset;
  }
  const NumaArena& gradients() const { return gradients_; }  // memory that payloads lie in
  // Returns the right value of every element of a chunk's result.
  float expected(uint32_t chunk) const {
    return static_cast<float>(shape_.workers) * value_of(chunk);
  }

  // Computes the sums of one round and nothing else, as the lower bound of a core's work for it.
  void run_kernel();

 private:
  float value_of(uint32_t chunk) const {
    return static_cast<float>(1 + chunk % shape_.window_chunks);
  }
  void sum_chunk(uint32_t chunk, float* accumulator);

  WireShape shape_;
  // Offset of a payload in its buffer: mbuf, headroom, Ethernet, IPv4 and UDP headers, and our
  // header.
  static constexpr size_t kPayloadOffset = 128 + 128 + 42 + limits::kHeaderBytes;

  uint32_t fragments_of_default_ = 0;  // fragments of a chunk of the default size
  size_t buffer_bytes_ = 0;
  std::vector<uint32_t> chunk_bytes_;
  uint64_t fragments_of_round_ = 0;
  std::unique_ptr<pipeline::JobShard> shard_;
  NumaArena gradients_;
  NumaArena sums_;  // results of run_kernel()
};

}  // namespace pbox::perf
