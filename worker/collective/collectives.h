// The collectives of one rank: cuts operations into pieces and gives each piece the next slot
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
#include "worker/protocol/operation.h"
#include "worker/protocol/session_spec.h"
#include "worker/protocol/slot_round.h"

namespace pbox::worker {

// More than the bandwidth of most networks times the delay of the slowest rank.
inline constexpr uint64_t kSlotBytesDefault = 32u << 20;

// As pbox_collective_callback.
using CollectiveCallback = void (*)(void* user, uint64_t operation, int status);

struct CollectiveRequest {
  CollectiveCall call;  // its number is not used
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  int32_t priority = 0;
  CollectiveCallback callback = nullptr;
  void* user = nullptr;
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

  explicit Collectives(const Options& options);

  // Returns the tensors to join with: slots of `bytes` together.
  static std::vector<TensorSpec> slots(uint64_t bytes, uint32_t chunk_bytes);

  // Returns an error that names the argument, or the operation's number.
  Result<uint64_t> start(const CollectiveRequest& request);
  bool has_ready() const { return !waiting_.empty() && !is_busy(next_slot_); }
  // Appends operations on slots that can start now.
  void take_ready(std::vector<Operation>& ready);
  // The slot's operation is complete. Returns the collective that ended with it, if one did.
  std::optional<Ended> complete(uint32_t slot);
  // Ends everything in flight.
  std::vector<Ended> fail(ErrorCode status);
  // Call it without the lock: callbacks may start operations.
  static void run_callbacks(const std::vector<Ended>& ended);

  bool is_pending(uint64_t operation) const { return pending_.contains(operation); }
  bool has_pending() const { return !pending_.empty(); }
  // Whether the operation ended because of fail().
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
    uint64_t pieces = 0;   // in all
    uint64_t started = 0;  // pieces that have a slot
    uint64_t left = 0;     // pieces that are not complete
  };
  // A piece's place in the operation's buffers.
  struct Place {
    uint64_t input = 0, output = 0;  // offsets in bytes
    uint32_t bytes = 0;
    uint32_t owner = 0;
  };

  bool is_busy(uint32_t slot) const { return slots_[slot] != nullptr; }
  Status check(const CollectiveRequest& request) const;
  uint64_t piece_bytes(const CollectiveCall& call) const;
  uint64_t pieces_of(const CollectiveCall& call) const;
  Place place_of(const CollectiveCall& call, uint64_t piece) const;
  Operation operation_of(const Pending& pending, uint64_t piece, uint32_t slot) const;

  Options options_;
  uint64_t next_number_ = 0;
  std::map<uint64_t, std::shared_ptr<Pending>> pending_;  // by number
  std::deque<std::shared_ptr<Pending>> waiting_;          // those that have pieces without a slot
  std::vector<std::shared_ptr<Pending>> slots_;           // null: free
  uint32_t next_slot_ = 0;
  std::set<uint64_t> failed_;
};

}  // namespace pbox::worker
