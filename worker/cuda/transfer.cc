#include "worker/cuda/transfer.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace pbox::worker::cuda {

using wire::Verb;

TransferLayout layout_of(const CollectiveCall& call, uint32_t rank, uint32_t world_size) {
  PBOX_CHECK(rank < world_size);
  TransferLayout layout;
  if (call.verb == Verb::kBarrier) return layout;
  layout.row_bytes = call.count * wire::dtype_bytes(call.dtype);
  layout.bytes = layout.row_bytes;
  if (layout.bytes == 0) return layout;
  layout.input_rows = layout.output_rows = 1;
  const uint64_t own_segment = rank * layout.row_bytes;
  switch (call.verb) {
    case Verb::kReduceScatter:
      layout.input_rows = world_size;
      layout.output_offset = own_segment;
      layout.bytes *= world_size;
      break;
    case Verb::kAllGather:
      layout.output_rows = world_size;
      layout.input_offset = own_segment;
      layout.bytes *= world_size;
      break;
    case Verb::kBroadcast:
      layout.input_rows = call.root == rank ? 1 : 0;
      layout.output_rows = 1 - layout.input_rows;
      break;
    case Verb::kAllReduce:
    case Verb::kBarrier: break;
  }
  return layout;
}

Transfer::Transfer(Client& client, Gate& gate, const CollectiveCall& call, const SliceShape& slices,
                   const TransferLayout& layout, std::unique_ptr<PinnedBlock> block)
    : client_(client),
      gate_(gate),
      call_(call),
      slices_(slices),
      layout_(layout),
      first_ticket_(gate.draw(slices.count)),
      block_(std::move(block)),
      copied_slices_(layout.input_rows > 0 ? 0 : slices.count),
      is_open_(slices.count, false) {
  PBOX_CHECK(slices.count > 0 && (block_ != nullptr) == (layout.bytes > 0));
  for (uint64_t slice = 0; slice < slices.count; ++slice) copied_.push_back({this, slice + 1});
}

Transfer::Range Transfer::range(uint64_t slice) const {
  const uint64_t offset = slice * slices_.bytes;
  PBOX_CHECK(offset < layout_.row_bytes);
  return {offset, std::min(slices_.bytes, layout_.row_bytes - offset)};
}

Status Transfer::start(int32_t priority) {
  const auto started = client_.start_collective(
      {.call = call_,
       .input = layout_.bytes == 0 ? nullptr : memory() + layout_.input_offset,
       .output = layout_.bytes == 0 ? nullptr : memory() + layout_.output_offset,
       .priority = priority,
       .callback = &Transfer::on_ended,
       .user = this,
       .input_follows = layout_.input_rows > 0,
       .slice_callback = &Transfer::on_slice});
  if (!started) {
    copied_slices_ = slices_.count;  // no host function will be queued
    on_ended(this, 0, static_cast<pbox_status>(started.error().code));
    open_all();
    return started.error();
  }
  operation_ = *started;
  return ok_status();
}

void Transfer::on_copied(void* user) {
  const auto& copied = *static_cast<Copied*>(user);
  copied.transfer->copied_up_to(copied.slices);
}

void Transfer::open_all() {
  const std::lock_guard lock(mutex_);
  for (uint64_t slice = 0; slice < slices_.count; ++slice) open(slice);
}

// Once the last slice is noted, this transfer may be destroyed as soon as the lock is released.
void Transfer::copied_up_to(uint64_t slices) {
  Client& client = client_;
  const uint64_t operation = operation_;
  {
    const std::lock_guard lock(mutex_);
    copied_slices_ = std::max(copied_slices_, slices);
    if (has_failed_) {
      open_failed();
      return;
    }
    if (has_ended_) return;
  }
  client.give_input(operation, slices);
}

void Transfer::on_slice(void* user, uint64_t slice) {
  auto& self = *static_cast<Transfer*>(user);
  const std::lock_guard lock(self.mutex_);
  self.open(slice);
}

void Transfer::on_ended(void* user, uint64_t, pbox_status status) {
  auto& self = *static_cast<Transfer*>(user);
  const std::lock_guard lock(self.mutex_);
  self.has_ended_ = true;
  if (static_cast<ErrorCode>(status) == ErrorCode::kOk) return;
  self.has_failed_ = true;
  self.open_failed();
}

bool Transfer::has_ended() {
  const std::lock_guard lock(mutex_);
  return has_ended_ && copied_slices_ == slices_.count;
}

void Transfer::open(uint64_t slice) {
  if (is_open_[slice]) return;
  is_open_[slice] = true;
  gate_.open(ticket(slice));
}

// Opens the gates of the slices that no copy to the host will write any more.
void Transfer::open_failed() {
  PBOX_CHECK(has_failed_ && copied_slices_ <= slices_.count);
  for (uint64_t slice = 0; slice < copied_slices_; ++slice) {
    if (is_open_[slice]) continue;
    poison(slice);
    open(slice);
  }
}

// Fills the slice's results with NaN: all bits of it are set.
void Transfer::poison(uint64_t slice) {
  if (layout_.output_rows == 0 || !wire::is_floating_point(call_.dtype)) return;
  const Range part = range(slice);
  for (uint64_t row = 0; row < layout_.output_rows; ++row) {
    std::memset(memory() + layout_.output_offset + row * layout_.row_bytes + part.offset, 0xff,
                part.bytes);
  }
}

}  // namespace pbox::worker::cuda
