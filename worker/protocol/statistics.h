// Reports of an Exchange about itself.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/protocol/slot_round.h"
#include "worker/protocol/staleness.h"

namespace pbox::worker {

struct Statistics {
  uint64_t bytes_pushed = 0, bytes_pulled = 0;  // payload, without retransmissions
  uint64_t zero_fragments = 0;                  // not sent, because they are zero
  uint64_t packets_sent = 0, packets_received = 0;
  uint64_t retransmitted_fragments = 0, probes_sent = 0, stale_packets = 0, rejected_packets = 0;
  uint32_t smoothed_rtt_us = 0;
  uint64_t shadow_bytes = 0;
  StalenessCounts staleness;
  uint64_t dropped_rounds = 0;  // operations whose result lacks this worker's gradient
};

// The rank or box that a waiting tensor waits for.
struct Laggard {
  enum class Kind { kNobody, kBox, kRank } kind = Kind::kNobody;
  uint32_t rank = 0;             // kRank: the lowest rank that has not pushed, or the slowest one
  uint32_t missing_workers = 0;  // kRank: number of ranks that have not pushed
  uint64_t asked_ns = 0;         // kRank: when the box was asked; its answer is not older than this
  uint32_t waited_ms = 0;        // kRank: how long the box had waited by then; 0: unknown
  uint32_t last_percent = 0;     // kRank: share of earlier chunk rounds that it completed as last
  uint64_t silent_ns = 0;        // kBox: time since its last packet
  // The operation that uses the slot; null if none does, and for other tensors. Valid until the
  // next call of the exchange.
  const CollectiveCall* call = nullptr;
};

// Progress at the last moment when every tensor had equally many results and no operation was
// active.
struct FinishedRounds {
  uint64_t rounds = 0;
  uint64_t at_ns = 0;
  uint64_t busy_ns = 0;  // total time, until then, during which an operation was active
  // By lane: like busy_ns, but each busy time counts only until the lane's last result in it.
  std::vector<uint64_t> lane_busy_ns = {};
};

}  // namespace pbox::worker
