// Carries a collective between a device and the client: knows its place in pinned memory, and which
// slices have been copied in and may be copied back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "worker/client.h"
#include "worker/cuda/gate.h"
#include "worker/cuda/pinned_pool.h"

namespace pbox::worker::cuda {

// Where the rows of the input and of the output lie in the pinned memory. A row is one rank's
// segment. Input and output overlap in the way that pbox_collective allows.
struct TransferLayout {
  uint64_t row_bytes = 0;
  uint64_t input_rows = 0, output_rows = 0;  // 0: nothing is copied
  uint64_t input_offset = 0, output_offset = 0;
  uint64_t bytes = 0;  // total size of the pinned memory
};

TransferLayout layout_of(const CollectiveCall& call, uint32_t rank, uint32_t world_size);

class Transfer {
 public:
  struct Range {
    uint64_t offset = 0, bytes = 0;  // within each row
  };

  Transfer(Client& client, Gate& gate, const CollectiveCall& call, const SliceShape& slices,
           const TransferLayout& layout, std::unique_ptr<PinnedBlock> block);
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  // Starts the client's operation. After an error all gates are open.
  Status start(int32_t priority);
  uint64_t operation() const { return operation_; }
  const TransferLayout& layout() const { return layout_; }
  uint64_t slice_count() const { return slices_.count; }
  Range range(uint64_t slice) const;
  uint64_t ticket(uint64_t slice) const { return first_ticket_ + slice; }
  std::byte* memory() const { return block_ == nullptr ? nullptr : block_->memory(); }
  // Returns the event that is recorded behind everything that the device does with the memory,
  // which must exist.
  Event event() const { return block_->event(); }

  // The host function behind the copy of a slice to the host, and its argument.
  static void on_copied(void* user);
  void* copied(uint64_t slice) { return &copied_[slice]; }
  // Opens all gates of a transfer whose input could not be queued. Nothing waits at them, but they
  // precede those of later transfers. Copies that were queued may still write to the memory.
  void open_all();

  // Returns whether the client has ended the operation and no longer uses its buffers, and all host
  // functions have run. A job that fails ends operations whose input is still being copied.
  bool has_ended();
  std::unique_ptr<PinnedBlock> take_block() { return std::move(block_); }

 private:
  struct Copied {
    Transfer* transfer = nullptr;
    uint64_t slices = 0;  // slices that are in host memory now
  };

  static void on_slice(void* user, uint64_t slice);
  static void on_ended(void* user, uint64_t operation, pbox_status status);
  void copied_up_to(uint64_t slices);
  void open(uint64_t slice);
  void open_failed();
  void poison(uint64_t slice);

  Client& client_;
  Gate& gate_;
  const CollectiveCall call_;
  const SliceShape slices_;
  const TransferLayout layout_;
  const uint64_t first_ticket_;
  std::unique_ptr<PinnedBlock> block_;
  std::vector<Copied> copied_;  // by slice
  uint64_t operation_ = 0;

  std::mutex mutex_;
  uint64_t copied_slices_ = 0;
  std::vector<bool> is_open_;  // by slice
  bool has_failed_ = false;
  bool has_ended_ = false;
};

}  // namespace pbox::worker::cuda
