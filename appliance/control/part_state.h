// The state of a part in mode optimize that moves to another box: the weights, and the optimizer's
// state and steps, which no worker can bring along. The former owner keeps it and hands it over in
// answers to questions. Each question says how much has already been received. The new owner opens
// the part once it has the whole state. The code here has no I/O.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "appliance/control/sync_spec.h"
#include "base/limits.h"
#include "base/result.h"
#include "nic/wire/control.pb.h"
#include "pipeline/state/chunk_state.h"

namespace pbox::control {

// Most bytes of chunk values in one answer, including the fields of their pieces.
inline constexpr uint32_t kStateAnswerBytesMax = 512 * 1024;
static_assert(kStateAnswerBytesMax < limits::kControlMessageBytesMax);

struct PartState {
  uint32_t epoch = 0;                        // epoch of the sessions that its workers had
  std::optional<float> learning_rate;        // last learning rate, if known
  std::optional<SyncInForce> models;         // if they were changed while the part ran
  std::vector<pipeline::ChunkState> chunks;  // ascending by chunk; only chunks that have weights

  uint64_t bytes() const;  // size of all values
};

// Returns the state from the position that the question names, as much as fits into one message.
proto::PartState answer_of(const PartState& state, const proto::AskState& question);

// A state that is being received, one answer at a time.
class IncomingState {
 public:
  // `value_counts`: by chunk of the part, how many f32 values its state has.
  IncomingState(uint32_t epoch, std::vector<size_t> value_counts);

  // Sets the epoch, chunk and offset of the next question.
  void describe(proto::AskState& question) const;
  // Adds an answer. kMismatch: it does not answer the last question, describes chunks that the part
  // does not have, or is corrupted. The whole state must then be discarded.
  Status take(const proto::PartState& answer);
  bool is_whole() const { return is_whole_; }
  const PartState& state() const { return state_; }

 private:
  Status take(const proto::ChunkPiece& piece);

  std::vector<size_t> value_counts_;
  PartState state_;
  uint32_t next_chunk_ = 0;
  uint32_t offset_ = 0;  // bytes of the newest chunk received so far; 0 if it is complete
  bool is_whole_ = false;
};

}  // namespace pbox::control
