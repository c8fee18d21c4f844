// What a port counts: frames that are none of the protocol's, and packets that it could not send.
// One table makes the counters, the metrics and their documentation. Written by the thread that
// polls the port, read by any.
#pragma once

#include "base/counter.h"

namespace pbox::nic {

// X(identifier, metric, label, value, help). Ports without frames of their own count the first row.
#define PBOX_PORT_COUNTERS(X)                                                                \
  X(kSendFailures, "pbox_port_send_failures_total", "", "",                                  \
    "Packets that the port took and could not send")                                         \
  X(kUnresolved, "pbox_port_unresolved_total", "", "",                                       \
    "Packets not sent because the receiver's or gateway's MAC address is not known yet")     \
  X(kAnswers, "pbox_port_answers_total", "", "", "ARP, NDP and echo requests answered")      \
  X(kSolicitations, "pbox_port_solicitations_total", "", "", "MAC addresses asked for")      \
  X(kPathMtuReports, "pbox_port_path_mtu_reports_total", "", "",                             \
    "ICMP messages that a router's next link is too narrow for a packet of ours")            \
  X(kChainedPackets, "pbox_port_chained_packets_total", "", "",                              \
    "Packets received in several buffers and copied together")                               \
  X(kExternalPackets, "pbox_port_external_packets_total", "", "",                            \
    "Packets whose payload the device read from where it lay")                               \
  X(kDispatched, "pbox_port_dispatched_packets_total", "", "",                               \
    "Packets handed over to the pipeline that owns them")                                    \
  X(kNoBuffer, "pbox_port_no_buffer_total", "", "", "Packets not made for want of a buffer") \
  X(kStagedPackets, "pbox_port_staged_packets_total", "", "",                                \
    "Packets whose payload was copied for the RDMA device: it was not registered there")     \
  X(kNoQueuePair, "pbox_port_no_queue_pair_total", "", "",                                   \
    "Packets not sent because their queue pair is broken, stuck or gone")                    \
  X(kQueuePairs, "pbox_port_queue_pairs_total", "", "", "Queue pairs connected to workers'") \
  X(kQueuePairErrors, "pbox_port_queue_pair_errors_total", "", "",                           \
    "Queue pairs that an error ended")                                                       \
  X(kLandedPackets, "pbox_port_landed_packets_total", "", "",                                \
    "Packets that workers wrote into their slots by RDMA")                                   \
  X(kBadImmediates, "pbox_port_bad_immediates_total", "", "",                                \
    "RDMA writes dropped: the sender named another slot than its next, or too many bytes")   \
  X(kEventDeviceFatal, "pbox_port_device_events_total", "kind", "device_fatal",              \
    "Events that RDMA devices have told of, by kind")                                        \
  X(kEventPortDown, "pbox_port_device_events_total", "kind", "port_down", "")                \
  X(kEventPortUp, "pbox_port_device_events_total", "kind", "port_up", "")                    \
  X(kEventQueuePairFatal, "pbox_port_device_events_total", "kind", "queue_pair_fatal", "")   \
  X(kEventLastReceive, "pbox_port_device_events_total", "kind", "last_receive", "")          \
  X(kEventOther, "pbox_port_device_events_total", "kind", "other", "")                       \
  X(kDropNotForUs, "pbox_port_dropped_frames_total", "reason", "not_for_us",                 \
    "Frames received and dropped, by reason")                                                \
  X(kDropNotIp, "pbox_port_dropped_frames_total", "reason", "not_ip", "")                    \
  X(kDropVlan, "pbox_port_dropped_frames_total", "reason", "vlan", "")                       \
  X(kDropMalformed, "pbox_port_dropped_frames_total", "reason", "malformed", "")             \
  X(kDropFragment, "pbox_port_dropped_frames_total", "reason", "fragment", "")               \
  X(kDropChecksum, "pbox_port_dropped_frames_total", "reason", "checksum", "")               \
  X(kDropProtocol, "pbox_port_dropped_frames_total", "reason", "protocol", "")               \
  X(kDropUdpPort, "pbox_port_dropped_frames_total", "reason", "udp_port", "")                \
  X(kDropSource, "pbox_port_dropped_frames_total", "reason", "source", "")                   \
  X(kDropDispatch, "pbox_port_dropped_frames_total", "reason", "dispatch_full", "")

enum class PortCounter : size_t {
#define PBOX_COUNTER_ENUM(identifier, metric, label, value, help) identifier,
  PBOX_PORT_COUNTERS(PBOX_COUNTER_ENUM)
#undef PBOX_COUNTER_ENUM
      kCount
};

inline constexpr CounterRow kPortCounterTable[] = {
#define PBOX_COUNTER_ROW(identifier, metric, label, value, help) {metric, label, value, help},
    PBOX_PORT_COUNTERS(PBOX_COUNTER_ROW)
#undef PBOX_COUNTER_ROW
};
static_assert(std::size(kPortCounterTable) == static_cast<size_t>(PortCounter::kCount));

using PortCounters = CounterSet<PortCounter>;

}  // namespace pbox::nic
