// What a pipeline counts. One table makes the counters, the metrics and their documentation: add a
// row here and it is exported. Written by the owning core alone, read by any thread without a lock.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace pbox::pipeline {

// X(identifier, metric, label value or "", help)
#define PBOX_PIPELINE_COUNTERS(X)                                                            \
  X(kRxPackets, "pbox_rx_packets_total", "", "Packets received from the port")               \
  X(kRxBytes, "pbox_rx_bytes_total", "", "Bytes received, headers and tags included")        \
  X(kTxPackets, "pbox_tx_packets_total", "", "Packets handed to the port")                   \
  X(kTxBytes, "pbox_tx_bytes_total", "", "Bytes sent, headers and tags included")            \
  X(kSendFailures, "pbox_port_send_failures_total", "",                                      \
    "Packets handed to the port that it could not send")                                     \
  X(kAggregated, "pbox_fragments_total", "aggregated",                                       \
    "Gradient fragments by what became of them")                                             \
  X(kDuplicate, "pbox_fragments_total", "duplicate", "")                                     \
  X(kStale, "pbox_fragments_total", "stale", "")                                             \
  X(kAggregatedBytes, "pbox_aggregated_bytes_total", "", "Gradient bytes added")             \
  X(kRoundsFinished, "pbox_chunk_rounds_total", "", "Chunk rounds finished")                 \
  X(kPullsReceived, "pbox_pulls_total", "", "Status requests received")                      \
  X(kStatusSent, "pbox_status_sent_total", "", "Status answers sent")                        \
  X(kResultsResent, "pbox_result_fragments_resent_total", "", "Result fragments sent again") \
  X(kResendsRefused, "pbox_resends_refused_total", "",                                       \
    "Resends over the bound, left to the timer")                                             \
  X(kRejectShort, "pbox_rejected_packets_total", "too_short", "Packets dropped, by reason")  \
  X(kRejectVersion, "pbox_rejected_packets_total", "version", "")                            \
  X(kRejectType, "pbox_rejected_packets_total", "type", "")                                  \
  X(kRejectReserved, "pbox_rejected_packets_total", "reserved_flags", "")                    \
  X(kRejectLength, "pbox_rejected_packets_total", "length", "")                              \
  X(kRejectTag, "pbox_rejected_packets_total", "tag", "")                                    \
  X(kRejectQueue, "pbox_rejected_packets_total", "wrong_queue", "")                          \
  X(kRejectSession, "pbox_rejected_packets_total", "unknown_session", "")                    \
  X(kRejectEpoch, "pbox_rejected_packets_total", "epoch", "")                                \
  X(kRejectGeneration, "pbox_rejected_packets_total", "generation", "")                      \
  X(kRejectChunk, "pbox_rejected_packets_total", "chunk", "")                                \
  X(kRejectFragment, "pbox_rejected_packets_total", "fragment", "")                          \
  X(kRejectDtype, "pbox_rejected_packets_total", "dtype", "")                                \
  X(kRejectRound, "pbox_rejected_packets_total", "round", "")                                \
  X(kSleeps, "pbox_pipeline_sleeps_total", "", "Times the pipeline slept for want of work")

enum class Counter : size_t {
#define PBOX_COUNTER_ENUM(identifier, metric, label, help) identifier,
  PBOX_PIPELINE_COUNTERS(PBOX_COUNTER_ENUM)
#undef PBOX_COUNTER_ENUM
      kCount
};

struct CounterRow {
  const char* metric;
  const char* reason;  // value of the label `reason`, "" if the metric has none
  const char* help;    // empty: same as the first row of the metric
};

inline constexpr CounterRow kCounterTable[] = {
#define PBOX_COUNTER_ROW(identifier, metric, label, help) {metric, label, help},
    PBOX_PIPELINE_COUNTERS(PBOX_COUNTER_ROW)
#undef PBOX_COUNTER_ROW
};
static_assert(std::size(kCounterTable) == static_cast<size_t>(Counter::kCount));

// A counter with one writer: a plain add, visible to readers without tearing.
class SingleWriterCounter {
 public:
  void add(uint64_t amount) {
    value_.store(value_.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
  }
  void set(uint64_t value) { value_.store(value, std::memory_order_relaxed); }
  uint64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

struct alignas(64) Counters {
  std::array<SingleWriterCounter, static_cast<size_t>(Counter::kCount)> values;

  void add(Counter counter, uint64_t amount = 1) {
    values[static_cast<size_t>(counter)].add(amount);
  }
  // For what somebody else on the same core counts.
  void set(Counter counter, uint64_t value) { values[static_cast<size_t>(counter)].set(value); }
  uint64_t get(Counter counter) const { return values[static_cast<size_t>(counter)].get(); }
};

}  // namespace pbox::pipeline
