// The counters of a port: frames that do not belong to the protocol, and packets that it could not
// send. One table defines the counters, the metrics and their documentation. Any thread may read.
// The control thread writes kQueuePairs, kLanes and the kEvent counters; the thread that polls the
// port writes all others.
#pragma once

#include "base/counter.h"

namespace pbox::nic {

// X(identifier, metric, label, value, help). The socket port counts only kSendFailures, the
// loopback port nothing.
#define PBOX_PORT_COUNTERS(X)                                                                      \
  X(kSendFailures, "pbox_port_send_failures_total", "", "",                                        \
    "Packets that the port accepted but could not send")                                           \
  X(kUnresolved, "pbox_port_unresolved_total", "", "",                                             \
    "Packets not sent because the MAC address of the receiver or gateway is unknown")              \
  X(kAnswers, "pbox_port_answers_total", "", "", "ARP, NDP and echo requests answered")            \
  X(kSolicitations, "pbox_port_solicitations_total", "", "", "Requests sent for a MAC address")    \
  X(kPathMtuReports, "pbox_port_path_mtu_reports_total", "", "",                                   \
    "ICMP messages reporting that a packet of this box exceeds the MTU of a link")                 \
  X(kChainedPackets, "pbox_port_chained_packets_total", "", "",                                    \
    "Packets received in several buffers and copied into one")                                     \
  X(kExternalPackets, "pbox_port_external_packets_total", "", "",                                  \
    "Packets whose payload the device, or a worker on this host, reads in place")                  \
  X(kDispatched, "pbox_port_dispatched_packets_total", "", "",                                     \
    "Packets handed over to the pipeline that owns them")                                          \
  X(kNoBuffer, "pbox_port_no_buffer_total", "", "", "Packets not sent because no buffer was free") \
  X(kStagedPackets, "pbox_port_staged_packets_total", "", "",                                      \
    "Packets whose payload was copied because it is not registered with the RDMA device")          \
  X(kNoQueuePair, "pbox_port_no_queue_pair_total", "", "",                                         \
    "Packets not sent because their queue pair is broken, stuck or closed")                        \
  X(kLanes, "pbox_port_lanes_total", "", "", "Lanes of shared memory opened to workers")           \
  X(kLanesBroken, "pbox_port_lanes_broken_total", "", "",                                          \
    "Lanes of shared memory closed because the worker broke the rules of the ring")                \
  X(kLaneFull, "pbox_port_lane_full_total", "", "",                                                \
    "Packets dropped because the worker's ring of shared memory was full")                         \
  X(kQueuePairs, "pbox_port_queue_pairs_total", "", "", "Queue pairs connected to workers")        \
  X(kQueuePairErrors, "pbox_port_queue_pair_errors_total", "", "",                                 \
    "Queue pairs broken by an error")                                                              \
  X(kLandedPackets, "pbox_port_landed_packets_total", "", "",                                      \
    "Packets that workers wrote into their slots by RDMA")                                         \
  X(kBadImmediates, "pbox_port_bad_immediates_total", "", "",                                      \
    "RDMA writes dropped because the immediate names a wrong slot or too many bytes")              \
  X(kEventDeviceFatal, "pbox_port_device_events_total", "kind", "device_fatal",                    \
    "Events reported by RDMA devices, by kind")                                                    \
  X(kEventPortDown, "pbox_port_device_events_total", "kind", "port_down", "")                      \
  X(kEventPortUp, "pbox_port_device_events_total", "kind", "port_up", "")                          \
  X(kEventQueuePairFatal, "pbox_port_device_events_total", "kind", "queue_pair_fatal", "")         \
  X(kEventLastReceive, "pbox_port_device_events_total", "kind", "last_receive", "")                \
  X(kEventOther, "pbox_port_device_events_total", "kind", "other", "")                             \
  X(kDropNotForUs, "pbox_port_dropped_frames_total", "reason", "not_for_us",                       \
    "Frames received and dropped, by reason")                                                      \
  X(kDropNotIp, "pbox_port_dropped_frames_total", "reason", "not_ip", "")                          \
  X(kDropVlan, "pbox_port_dropped_frames_total", "reason", "vlan", "")                             \
  X(kDropMalformed, "pbox_port_dropped_frames_total", "reason", "malformed", "")                   \
  X(kDropFragment, "pbox_port_dropped_frames_total", "reason", "fragment", "")                     \
  X(kDropChecksum, "pbox_port_dropped_frames_total", "reason", "checksum", "")                     \
  X(kDropProtocol, "pbox_port_dropped_frames_total", "reason", "protocol", "")                     \
  X(kDropUdpPort, "pbox_port_dropped_frames_total", "reason", "udp_port", "")                      \
  X(kDropSource, "pbox_port_dropped_frames_total", "reason", "source", "")                         \
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
