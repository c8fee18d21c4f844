// The rounds of slots, in jobs of collectives (nic/wire/collective.h): the operation of the
// application that a round belongs to, and the piece of it that the round carries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "nic/wire/collective.h"

namespace pbox::worker {

// One operation, with the arguments of the application's call.
struct CollectiveCall {
  uint64_t number = 0;  // counts the context's operations from 0
  wire::Verb verb = wire::Verb::kBarrier;
  wire::Combine combine = wire::Combine::kCopy;
  wire::Dtype dtype = wire::Dtype::kU8;
  uint64_t count = 0;  // elements, as pbox_collective counts them
  uint32_t root = 0;   // used by a broadcast, otherwise 0
};

struct SlotRound {
  std::shared_ptr<const CollectiveCall> call;
  wire::RoundShape shape;  // without fragment_count, which depends on the session
  uint32_t bytes = 0;      // size of the piece on the wire
  bool is_empty = true;    // this rank pushes no data

  // A result that goes to all but the owner is what the owner has pushed.
  bool is_own_result() const {
    return shape.audience == wire::Audience::kAllButOwner && !is_empty && bytes > 0;
  }
};

}  // namespace pbox::worker
