// The counters of a pipeline. One table defines the counters, the metrics and their documentation:
// a row added here is exported. The pipeline's core writes, and any thread reads, without locks.
#pragma once

#include "base/counter.h"

namespace pbox::pipeline {

// X(identifier, metric, label, value, help)
#define PBOX_PIPELINE_COUNTERS(X)                                                                  \
  X(kRxPackets, "pbox_rx_packets_total", "", "", "Packets received from the port")                 \
  X(kRxBytes, "pbox_rx_bytes_total", "", "", "Bytes received, including headers and tags")         \
  X(kTxPackets, "pbox_tx_packets_total", "", "", "Packets handed to the port")                     \
  X(kTxBytes, "pbox_tx_bytes_total", "", "", "Bytes sent, including headers and tags")             \
  X(kAggregated, "pbox_fragments_total", "reason", "aggregated", "Gradient fragments by outcome")  \
  X(kDuplicate, "pbox_fragments_total", "reason", "duplicate", "")                                 \
  X(kStale, "pbox_fragments_total", "reason", "stale", "")                                         \
  X(kDropped, "pbox_fragments_total", "reason", "dropped", "")                                     \
  X(kAggregatedBytes, "pbox_aggregated_bytes_total", "", "",                                       \
    "Payload bytes of pushes that were added, including initial weights")                          \
  X(kZeroFragments, "pbox_zero_fragments_total", "", "",                                           \
    "Zero fragments of pushes that workers named instead of sending them")                         \
  X(kZeroResults, "pbox_zero_result_fragments_total", "", "",                                      \
    "Zero fragments of results that the box named instead of sending them")                        \
  X(kRoundsFinished, "pbox_chunk_rounds_total", "", "", "Chunk rounds finished")                   \
  X(kCompressedRounds, "pbox_compressed_chunk_rounds_total", "", "",                               \
    "Chunk rounds finished with gradients compressed as q8 or q4")                                 \
  X(kPullsReceived, "pbox_pulls_total", "", "", "PULL packets received")                           \
  X(kStatusSent, "pbox_status_sent_total", "", "",                                                 \
    "STATUS packets sent in answer to a PULL, or to a push of a job with cached reads")            \
  X(kAddressesChallenged, "pbox_addresses_challenged_total", "", "",                               \
    "Challenges sent to an address that a worker had not used before")                             \
  X(kAddressesProved, "pbox_addresses_proved_total", "", "",                                       \
    "Changes of a worker's address, each proved by an echoed challenge")                           \
  X(kAnnounced, "pbox_announcements_sent_total", "", "",                                           \
    "Finished chunks announced to a worker without their data (delivery pull; collectives)")       \
  X(kResultsResent, "pbox_result_fragments_resent_total", "", "", "Result fragments sent again")   \
  X(kResendsRefused, "pbox_resends_refused_total", "", "",                                         \
    "Resends and answers refused because the session's budget is spent or the queue is full; the " \
    "worker asks again")                                                                           \
  X(kRejectShort, "pbox_rejected_packets_total", "reason", "too_short",                            \
    "Packets dropped, by reason")                                                                  \
  X(kRejectVersion, "pbox_rejected_packets_total", "reason", "version", "")                        \
  X(kRejectType, "pbox_rejected_packets_total", "reason", "type", "")                              \
  X(kRejectReserved, "pbox_rejected_packets_total", "reason", "reserved_flags", "")                \
  X(kRejectLength, "pbox_rejected_packets_total", "reason", "length", "")                          \
  X(kRejectTag, "pbox_rejected_packets_total", "reason", "tag", "")                                \
  X(kRejectQueue, "pbox_rejected_packets_total", "reason", "wrong_queue", "")                      \
  X(kRejectSession, "pbox_rejected_packets_total", "reason", "unknown_session", "")                \
  X(kRejectEpoch, "pbox_rejected_packets_total", "reason", "epoch", "")                            \
  X(kRejectGeneration, "pbox_rejected_packets_total", "reason", "generation", "")                  \
  X(kRejectChunk, "pbox_rejected_packets_total", "reason", "chunk", "")                            \
  X(kRejectFragment, "pbox_rejected_packets_total", "reason", "fragment", "")                      \
  X(kRejectDtype, "pbox_rejected_packets_total", "reason", "dtype", "")                            \
  X(kRejectRound, "pbox_rejected_packets_total", "reason", "round", "")                            \
  X(kRejectShape, "pbox_rejected_packets_total", "reason", "shape", "")                            \
  X(kKeyUpdatesBegun, "pbox_key_updates_total", "state", "begun",                                  \
    "Updates of session keys, begun by the box and followed by the worker")                        \
  X(kKeyUpdatesFollowed, "pbox_key_updates_total", "state", "followed", "")                        \
  X(kSleeps, "pbox_pipeline_sleeps_total", "", "",                                                 \
    "Times the pipeline slept or paused: because there was no work, or to let packets gather")     \
  X(kCyclesReceive, "pbox_pipeline_sampled_cycles_total", "phase", "receive",                      \
    "Processor cycles in sampled turns of the loop, by phase")                                     \
  X(kCyclesAuthenticate, "pbox_pipeline_sampled_cycles_total", "phase", "authenticate", "")        \
  X(kCyclesAdd, "pbox_pipeline_sampled_cycles_total", "phase", "add", "")                          \
  X(kCyclesFinish, "pbox_pipeline_sampled_cycles_total", "phase", "finish", "")                    \
  X(kCyclesSend, "pbox_pipeline_sampled_cycles_total", "phase", "send", "")                        \
  X(kSampledFragments, "pbox_pipeline_sampled_fragments_total", "", "",                            \
    "Gradient fragments added in sampled turns")                                                   \
  X(kSampledBytes, "pbox_pipeline_sampled_bytes_total", "", "",                                    \
    "Payload bytes of pushes that were added in sampled turns")                                    \
  X(kBusyNs, "pbox_pipeline_busy_seconds_total", "", "",                                           \
    "Time spent in turns of the loop that had work to do")                                         \
  X(kTicks, "pbox_pipeline_ticks_total", "", "",                                                   \
    "Ticks of the loop, which show that it runs: 20 per second, about 10 while it sleeps")         \
  X(kQueuedChunks, "pbox_pipeline_queued_chunks", "", "",                                          \
    "Finished chunks waiting to be sent, as of the last tick")

enum class Counter : size_t {
#define PBOX_COUNTER_ENUM(identifier, metric, label, value, help) identifier,
  PBOX_PIPELINE_COUNTERS(PBOX_COUNTER_ENUM)
#undef PBOX_COUNTER_ENUM
      kCount
};

inline constexpr CounterRow kCounterTable[] = {
#define PBOX_COUNTER_ROW(identifier, metric, label, value, help) {metric, label, value, help},
    PBOX_PIPELINE_COUNTERS(PBOX_COUNTER_ROW)
#undef PBOX_COUNTER_ROW
};
static_assert(std::size(kCounterTable) == static_cast<size_t>(Counter::kCount));

using Counters = CounterSet<Counter>;

}  // namespace pbox::pipeline
