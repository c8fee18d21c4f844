// What a box keeps of a part in mode optimize that goes on elsewhere: the weights, the optimizer's
// state and steps, which no worker can bring along. Handed over in answers to questions, each of
// which names what has come so far, and opened by the other box once all of it is there. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/limits.h"
#include "base/result.h"
#include "nic/wire/control.pb.h"
#include "pipeline/state/chunk_state.h"

namespace pbox::appliance {

// Of chunks' values in one answer, with what stands beside them.
inline constexpr uint32_t kStateAnswerBytesMax = 512 * 1024;
static_assert(kStateAnswerBytesMax < limits::kControlMessageBytesMax);

struct PartState {
  uint32_t epoch = 0;                        // of the sessions that its workers had
  std::optional<float> learning_rate;        // at the end, where that is known
  std::vector<pipeline::ChunkState> chunks;  // ascending; those that have weights

  uint64_t bytes() const;  // of values
};

// From where the question says on, as much as one message takes.
proto::PartState answer_of(const PartState& state, const proto::AskState& question);

// A state as it comes in, one answer at a time.
class IncomingState {
 public:
  // `value_counts`: by chunk of the part, how many f32 its state has.
  IncomingState(uint32_t epoch, std::vector<size_t> value_counts);

  // The next question's chunk and offset.
  void describe(proto::AskState& question) const;
  // kMismatch: this is no answer to that question, or the part's chunks are others, or some bytes
  // are. Nothing of the state is to be used then.
  Status take(const proto::PartState& answer);
  bool is_whole() const { return is_whole_; }
  const PartState& state() const { return state_; }

 private:
  Status take(const proto::ChunkPiece& piece);

  std::vector<size_t> value_counts_;
  PartState state_;
  uint32_t next_chunk_ = 0;
  uint32_t offset_ = 0;  // bytes of the newest chunk that are here, if some are missing
  bool is_whole_ = false;
};

}  // namespace pbox::appliance
