// An independent account of what a worker's tensors must hold: which fragments of which rounds it
// may push and take, and what its output buffers are then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/fuzz/input.h"
#include "worker/core.h"

namespace pbox::fuzz {

constexpr uint32_t kPipelines = 2;
constexpr uint32_t kFragmentBytes = limits::kFragmentBytesMin;
constexpr uint32_t kChunkBytes = 4 * kFragmentBytes;
constexpr wire::TagPolicy kTag{.payload_crc = true};

class WorkerOracle {
 public:
  struct Tensor {
    worker::TensorSpec spec;
    uint32_t first_chunk = 0;
    bool started = false;
    std::vector<std::byte> input, output, expected;  // of exactly the tensor's bytes
  };
  struct Chunk {
    uint32_t tensor = 0;
    uint32_t offset = 0;
    uint32_t bytes = 0;
    uint32_t round = 0;
    uint64_t held = 0;    // fragments of the round's result
    bool pushed = false;  // a packet of this round was seen
    bool is_done = true;  // of the tensor's round at hand
    uint32_t fragments() const;
  };

  // Shapes of the tensors, from the input.
  explicit WorkerOracle(Input& input);

  worker::SessionSpec session(uint32_t credit_bytes) const;
  std::vector<worker::TensorSpec> specs() const;
  static uint32_t spi(uint32_t pipeline) { return 0x66000000u | pipeline << 13 | 7u; }
  static uint32_t pipeline_of(uint32_t chunk) { return chunk % kPipelines; }

  std::vector<Tensor>& tensors() { return tensors_; }
  const std::vector<Chunk>& chunks() const { return chunks_; }

  void start(uint32_t tensor, uint8_t value);
  // Each ends the process unless what the core did is right.
  void check_sent(const nic::TxPacket& packet, uint32_t pipeline);
  void accepted(const wire::Parsed& result);
  void completed(uint32_t tensor);
  void check_outputs() const;
  // True if a sound result of this place must be taken.
  bool awaits(uint32_t chunk, uint32_t round, uint32_t fragment) const;

 private:
  std::vector<Tensor> tensors_;
  std::vector<Chunk> chunks_;
};

}  // namespace pbox::fuzz
