// The rounds of slots that fuzz_worker starts as rank 0, cut as worker::Collectives cuts them.
#pragma once

#include <memory>

#include "tests/fuzz/input.h"
#include "worker/protocol/slot_round.h"

namespace pbox::fuzz {

constexpr uint32_t kOwnRank = 0;

struct StartedSlot {
  std::shared_ptr<const worker::SlotRound> round;
  bool writes = true;  // the operation has a buffer for the result
};

// `chunk_bytes` is the size of a slot. If there is a shadow, no result goes to one rank alone.
StartedSlot read_slot_round(Input& input, uint32_t chunk_bytes, bool has_shadow);

}  // namespace pbox::fuzz
