#include "tests/fuzz/worker_slots.h"

namespace pbox::fuzz {

using wire::Audience;

StartedSlot read_slot_round(Input& input, uint32_t chunk_bytes, bool has_shadow) {
  const uint8_t choice = input.byte();
  const uint8_t size = input.byte();
  const bool is_owner = (choice & 4) != 0;
  const bool keeps_nothing = (choice & 64) != 0;
  StartedSlot started;
  worker::SlotRound round;
  round.call = std::make_shared<const worker::CollectiveCall>();
  round.shape.digest = 1u + choice * 256u + size;
  round.shape.owner = is_owner ? kOwnRank : kOwnRank + 1;
  round.shape.audience = static_cast<Audience>(choice & 3);
  if (has_shadow && round.shape.audience == Audience::kOwner) {
    round.shape.audience = Audience::kAll;
  }
  if (round.shape.audience == Audience::kNobody) {
    started.writes = false;
  } else {
    round.bytes = (1u + size) * 8 % chunk_bytes + 8;
    if (round.shape.audience == Audience::kAllButOwner) {
      round.is_empty = !is_owner;
      started.writes = !is_owner || !keeps_nothing;
    } else {
      round.is_empty = false;
      round.shape.combine = wire::Combine::kSum;
      round.shape.dtype = static_cast<wire::Dtype>((choice >> 3) % wire::kCollectiveDtypeCount);
      started.writes = is_owner || !keeps_nothing;
    }
  }
  started.round = std::make_shared<const worker::SlotRound>(std::move(round));
  return started;
}

}  // namespace pbox::fuzz
