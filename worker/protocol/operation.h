// One exchange of a tensor, as a value that every layer passes on: Client, PartSet, Membership,
// Exchange. PartSet narrows it to the pieces of each part; Membership decides the priority.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "worker/protocol/row_push.h"
#include "worker/protocol/slot_round.h"

namespace pbox::worker {

struct Operation {
  uint32_t tensor = 0;  // index among the tensors of the layer that takes it
  // Each buffer holds all elements of the tensor; both may be the same. The caller must not touch
  // them until the tensor is completed. A fetch does not use the input.
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::optional<int32_t> priority = {};  // empty: the tensor's own; larger goes earlier
  bool initial_weights = false;          // the input is weights and not a gradient
  // In a weighted job: the code of the push's weight (nic/wire/push_weight.h), by which the input
  // has been multiplied; 0: the push has no weight and counts once.
  uint16_t weight_code = 0;
  // Nothing is pushed: the output gets what the box holds of the tensor, the result of its last
  // round. Only for the first operation of a worker that joined when the round was above 0.
  bool fetch = false;
  // The tensor is a table, and these rows are pushed instead of the input, which is null. The
  // output holds the table, and gets the rows that have changed.
  std::shared_ptr<const RowPush> rows = nullptr;
  // The tensor is a slot, and this is its round. The output may be null: the result is not kept.
  std::shared_ptr<const SlotRound> slot = nullptr;
};

}  // namespace pbox::worker
