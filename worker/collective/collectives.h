// Runs the collectives of one rank: cuts operations into pieces and gives each piece the next slot
// (nic/wire/collective.h). Slots are used in turn, so every rank uses the same slot and round for a
// piece, whatever completes first. Pure; the owner's lock guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "pbox/base.h"
#include "worker/protocol/operation.h"
#include "worker/protocol/session_spec.h"
#include "worker/protocol/slot_round.h"

namespace pbox::worker {

// More than the bandwidth of most networks times the delay of the slowest rank.
inline constexpr uint64_t kSlotBytesDefault = 32u << 20;

// The part of an operation that another device copies at once (worker/cuda). Slice s covers the
// bytes [s * bytes, (s + 1) * bytes) of each rank's segment, or of the whole buffer if the verb has
// no segments.
struct SliceShape {
  uint64_t bytes = 0;
  uint64_t count = 1;
};

// The type of pbox_collective_callback.
using CollectiveCallback = void (*)(void* user, uint64_t operation, pbox_status status);
// The I/O thread calls this when all pieces of a slice are complete. It runs before the callback.
using SliceCallback = void (*)(void* user, uint64_t slice);

struct CollectiveRequest {
  CollectiveCall call;  // its number is not used
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  int32_t priority = 0;
  CollectiveCallback callback = nullptr;
  void* user = nullptr;
  // The operation takes its turn now, but each piece is sent only after set_ready() of its slice.
  bool input_follows = false;
  SliceCallback slice_callback = nullptr;
};

class Collectives {
 public:
  struct Options {
    uint32_t rank = 0;
    uint32_t world_size = 1;
    uint32_t chunk_bytes = 0;
    uint32_t slots = 0;
    // The result of a reduce_scatter goes to its owner alone. Otherwise all ranks receive it, so
    // that each can give it back to a box that has lost it.
    bool sends_to_owner_alone = false;
  };
  struct Ended {
    uint64_t operation = 0;
    ErrorCode status = ErrorCode::kOk;
    CollectiveCallback callback = nullptr;
    void* user = nullptr;
  };

  struct SliceEnded {
    SliceCallback callback = nullptr;
    void* user = nullptr;
    uint64_t slice = 0;
  };

  explicit Collectives(const Options& options);

  // Returns the tensors to join with, which are slots of `bytes` bytes in total.
  static std::vector<TensorSpec> slots(uint64_t bytes, uint32_t chunk_bytes);

  // Returns the operation's number, or an error that names the argument.
  Result<uint64_t> start(const CollectiveRequest& request);
  bool has_ready() const {
    return !waiting_.empty() && !is_busy(next_slot_) &&
           waiting_.front()->started < waiting_.front()->ready;
  }
  // Returns an error if an argument is not allowed, which the error names.
  Status check(const CollectiveCall& call) const;
  // Returns how an operation with `input_follows` is divided. The call must be sound.
  SliceShape slices(const CollectiveCall& call) const;
  // The input of the first `slices` slices is available. An operation that has ended is ignored.
  void set_ready(uint64_t operation, uint64_t slices);
  // Returns whether the oldest operation that has pieces to send waits for set_ready().
  bool awaits_input() const {
    return !waiting_.empty() && waiting_.front()->started == waiting_.front()->ready;
  }
  // Appends operations on slots that can start now.
  void take_ready(std::vector<Operation>& ready);
  // The slot's operation is complete. Returns the collective that ended with it, if one did.
  // Appends the slice that ended with it, if its collective has a slice_callback.
  std::optional<Ended> complete(uint32_t slot, std::vector<SliceEnded>* slices = nullptr);
  // Ends everything in flight with this status.
  std::vector<Ended> fail(ErrorCode status);
  // Call them without the lock: callbacks may start operations.
  static void run_callbacks(const std::vector<SliceEnded>& slices);
  static void run_callbacks(const std::vector<Ended>& ended);

  bool is_pending(uint64_t operation) const { return pending_.contains(operation); }
  bool has_pending() const { return !pending_.empty(); }
  // Returns whether the operation ended because of fail().
  bool has_failed(uint64_t operation) const { return failed_.contains(operation); }
  uint64_t started() const { return next_number_; }
  // Returns the oldest operation in flight; there must be one.
  uint64_t oldest_pending() const { return pending_.begin()->first; }
  std::string text(uint64_t operation) const;
  // Returns a slot that the pending operation uses; nullopt while it waits for one.
  std::optional<uint32_t> slot_of(uint64_t operation) const;

 private:
  struct Pending {
    std::shared_ptr<const CollectiveCall> call;
    CollectiveRequest request;
    uint64_t pieces = 0;   // in total
    uint64_t ready = 0;    // pieces whose input is available
    uint64_t started = 0;  // pieces that have a slot
    uint64_t left = 0;     // pieces that are not complete
    // Pieces of each slice that are not complete; empty without a slice_callback.
    std::vector<uint64_t> left_in_slice;
  };
  struct Slot {
    std::shared_ptr<Pending> pending;  // null: free
    uint64_t piece = 0;
  };
  // A piece's place in the operation's buffers.
  struct Place {
    uint64_t input = 0, output = 0;  // offsets in bytes
    uint32_t bytes = 0;
    uint32_t owner = 0;
  };

  bool is_busy(uint32_t slot) const { return slots_[slot].pending != nullptr; }
  Status check_buffers(const CollectiveRequest& request) const;
  uint64_t piece_bytes(const CollectiveCall& call) const;
  uint64_t pieces_of(const CollectiveCall& call) const;
  uint64_t pieces_per_slice(const CollectiveCall& call) const;
  Place place_of(const CollectiveCall& call, uint64_t piece) const;
  Operation operation_of(const Pending& pending, uint64_t piece, uint32_t slot) const;

  Options options_;
  uint64_t next_number_ = 0;
  std::map<uint64_t, std::shared_ptr<Pending>> pending_;  // by number
  std::deque<std::shared_ptr<Pending>> waiting_;          // with pieces that have no slot yet
  std::vector<Slot> slots_;
  uint32_t next_slot_ = 0;
  std::set<uint64_t> failed_;
};

}  // namespace pbox::worker
