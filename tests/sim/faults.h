// All kinds of faults, in one table from which the counts, names and report are made. To add a
// fault, add a row here, a draw in options.cc, and code that causes and counts it. Some entries are
// not faults but events that must occur too: the successor of a lost box continues from a backup
// copy or with the optimizer state of a snapshot, snapshots are taken, and an operator changes the
// model of a running job or is refused.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace pbox::sim {

// X(identifier, name)
#define PBOX_SIM_FAULTS(X)                  \
  X(kDropUniform, "drop_uniform")           \
  X(kDropBurst, "drop_burst")               \
  X(kDropFragment, "drop_fragment")         \
  X(kDropPartition, "drop_partition")       \
  X(kDropUnreachable, "drop_no_socket")     \
  X(kQueueFull, "queue_full")               \
  X(kRingOverflow, "ring_overflow")         \
  X(kDuplicate, "duplicate")                \
  X(kReorder, "reorder")                    \
  X(kLongDelay, "delay")                    \
  X(kClog, "clog")                          \
  X(kBitFlip, "bit_flip")                   \
  X(kTruncation, "truncation")              \
  X(kWrongQueue, "wrong_queue")             \
  X(kPartition, "partition")                \
  X(kPause, "pause")                        \
  X(kClockJump, "clock_jump")               \
  X(kSlowReader, "slow_reader")             \
  X(kControlStall, "control_stall")         \
  X(kControlBreak, "control_break")         \
  X(kWorkerCrash, "worker_crash")           \
  X(kBoxCrash, "box_crash")                 \
  X(kDiskFault, "disk_fault")               \
  X(kPartMove, "part_move")                 \
  X(kChunkMove, "chunk_move")               \
  X(kStaleMap, "stale_map")                 \
  X(kDrain, "drain")                        \
  X(kRebind, "rebind")                      \
  X(kPortFallback, "port_fallback")         \
  X(kCopyUsed, "copy_used")                 \
  X(kNoRoom, "no_room")                     \
  X(kSnapshotTaken, "snapshot_taken")       \
  X(kSnapshotFailed, "snapshot_failed")     \
  X(kSnapshotUsed, "snapshot_used")         \
  X(kSnapshotRestored, "snapshot_restored") \
  X(kModelChanged, "model_changed")         \
  X(kModelRefused, "model_refused")         \
  X(kRogue, "rogue_packet")                 \
  X(kOutsider, "outsider_packet")

enum class Fault : size_t {
#define PBOX_SIM_FAULT_ENUM(identifier, name) identifier,
  PBOX_SIM_FAULTS(PBOX_SIM_FAULT_ENUM)
#undef PBOX_SIM_FAULT_ENUM
      kCount
};

inline constexpr const char* kFaultNames[] = {
#define PBOX_SIM_FAULT_NAME(identifier, name) name,
    PBOX_SIM_FAULTS(PBOX_SIM_FAULT_NAME)
#undef PBOX_SIM_FAULT_NAME
};

struct FaultCounts {
  std::array<uint64_t, static_cast<size_t>(Fault::kCount)> values{};

  void add(Fault fault, uint64_t count = 1) { values[static_cast<size_t>(fault)] += count; }
  uint64_t get(Fault fault) const { return values[static_cast<size_t>(fault)]; }
  void add(const FaultCounts& other) {
    for (size_t index = 0; index < values.size(); ++index) values[index] += other.values[index];
  }
};

}  // namespace pbox::sim
