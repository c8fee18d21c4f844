// An independent account of what a worker's tensors must hold: which fragments of which rounds it
// may push, accept and give back, and what its output buffers then contain.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "tests/fuzz/input.h"
#include "tests/fuzz/worker_slots.h"
#include "worker/protocol/exchange.h"

namespace pbox::fuzz {

constexpr uint32_t kPipelines = 2;
constexpr uint32_t kFragmentBytes = limits::kFragmentBytesMin;
constexpr uint32_t kChunkBytes = 4 * kFragmentBytes;
constexpr wire::TagPolicy kTag{.payload_crc = true};
constexpr float kLearningRate = 0.5f;
constexpr float kGradientScale = 0.25f;

class WorkerOracle {
 public:
  struct Tensor {
    worker::TensorSpec spec;
    uint32_t first_chunk = 0;
    bool started = false;
    bool in_place = false;
    uint32_t operations = 0;        // started so far
    std::optional<uint32_t> round;  // for model drop: the current operation's, once it is known
    std::vector<std::byte> input, output, expected;  // exactly the tensor's bytes
    // In jobs of collectives, where the tensor is a slot: the operation in flight, or the last one,
    // and the round of the last one that has ended.
    StartedSlot slot = {};
    std::shared_ptr<const worker::SlotRound> consumed_slot = {};
    // Returns whether the operation's result is written over what it pushes.
    bool overwrites_input() const {
      return in_place && slot.writes && (slot.round == nullptr || !slot.round->is_empty);
    }
  };
  // A fragment of a chunk that is read from the worker's copy.
  struct Fragment {
    uint32_t clock = 0;
    uint32_t applied = 0;
    std::vector<std::byte> bytes = {};
  };
  struct Chunk {
    uint32_t tensor = 0;
    uint32_t offset = 0;
    uint32_t bytes = 0;
    uint32_t round = 0;
    uint64_t held = 0;       // fragments of the round's result that have arrived
    bool made = false;       // a packet that gives the result back was made, but perhaps not sent
    bool pushed = false;     // a packet of this round was sent
    bool is_done = true;     // the chunk is done in the tensor's current round
    uint32_t clock = 0;      // round of the newest result that arrived, plus 1
    bool in_round = true;    // for model drop: `round` is the current operation's
    bool giving = false;     // the box asked for the previous round's result and lacks it still
    bool announced = false;  // with delivery by pull: the round's result was announced
    bool has_copy = false;
    std::vector<std::byte> staged = {}, copy = {};  // result of the current and the previous round
    // The rest is for cached reads: acknowledged fragments of the push, the worker's copies by
    // fragment, and its gradients by round, from 1.
    uint64_t acknowledged = 0;
    std::map<uint32_t, Fragment> cached = {};
    std::map<uint32_t, std::vector<std::byte>> gradients = {};
    uint32_t fragments() const;
  };

  // Reads the shapes of the tensors from the input.
  explicit WorkerOracle(Input& input);

  worker::SessionSpec session(uint32_t credit_bytes);
  std::vector<worker::TensorSpec> specs() const;
  NumaArena shadow();
  bool has_shadow() const { return has_shadow_; }
  bool is_collective() const { return is_collective_; }
  // Returns the round of the chunk's slot that is in flight or comes next; null in jobs without
  // slots.
  const worker::SlotRound* slot(const Chunk& chunk) const {
    const Tensor& tensor = tensors_[chunk.tensor];
    return chunk.giving ? tensor.consumed_slot.get() : tensor.slot.round.get();
  }
  // Returns whether the chunk ends without a RESULT, when the box says that the round is finished.
  bool gets_no_result(const Chunk& chunk) const {
    return slot(chunk) != nullptr && !slot(chunk)->shape.is_sent_to(kOwnRank);
  }
  const wire::SyncSpec& sync() const { return sync_; }
  // Returns whether the chunk's round ends with an acknowledgement and is read from the worker's
  // copy.
  bool reads_cache(const Chunk& chunk) const {
    return wire::keeps_copies(sync_) && chunk.round > 0;
  }
  uint32_t epoch() const { return epoch_; }
  uint16_t generation() const { return generation_; }
  uint32_t spi(uint32_t pipeline) const {
    return (0x66000000u ^ epoch_ << 20) | pipeline << 13 | 7u;
  }
  static uint32_t pipeline_of(uint32_t chunk) { return chunk % kPipelines; }

  std::vector<Tensor>& tensors() { return tensors_; }
  const std::vector<Chunk>& chunks() const { return chunks_; }

  void start(uint32_t tensor, uint8_t value, const StartedSlot& slot);
  // Returns the next session. The input chooses the box's rounds and the copies that it asks for,
  // among those that are possible.
  worker::SessionSpec resume(Input& input);
  void new_generation() { ++generation_; }
  bool is_giving() const;
  // Each of these ends the process unless the core did the right thing.
  //
  // Called when the core has made this packet. The port may not take it.
  void made(const nic::TxPacket& packet);
  void check_sent(const nic::TxPacket& packet, uint32_t pipeline);
  void accepted(const wire::Parsed& result);
  void came_back(const wire::Parsed& result);
  void acknowledged(const wire::Parsed& status);
  // Called when the core has received a sound STATUS of a chunk in flight.
  void told(const wire::Parsed& status);
  void completed(uint32_t tensor);
  void check_outputs() const;
  // Returns true if the core must accept a sound result for this fragment.
  bool awaits(uint32_t chunk, uint32_t round, uint32_t fragment) const;

 private:
  void check_version(const Chunk& chunk, const wire::Header& result) const;
  void check_zeros(const nic::TxPacket& packet, const Chunk& chunk) const;
  std::vector<wire::Parsed> fragments_of(const wire::Parsed& zeros) const;
  void check_slot_push(const nic::TxPacket& packet, const Chunk& chunk) const;
  void end_giving(Chunk& chunk);
  void finish(Chunk& chunk);
  void finish_without_result(Chunk& chunk);
  void store(Chunk& chunk, const wire::Parsed& result);
  void finish_if_readable(Chunk& chunk);
  void read(Chunk& chunk, uint32_t fragment);

  std::vector<Tensor> tensors_;
  std::vector<Chunk> chunks_;
  bool has_shadow_ = false;
  bool is_collective_ = false;
  bool takes_zeros_ = false;
  wire::SyncSpec sync_;
  wire::Delivery delivery_ = wire::Delivery::kBroadcast;
  uint32_t epoch_ = 5;
  uint16_t generation_ = 6;
  uint32_t credit_bytes_ = 0;
};

}  // namespace pbox::fuzz
