// Finding, by trial, source ports whose packets a NIC's unknown hash leads to the right queues
// (QueueAffinity::kSourceTrial). A box drops what arrives on the wrong queue without a word, so the
// port that is answered is a port that leads there.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "nic/socket/port.h"
#include "worker/transport/transport.h"

namespace pbox::worker {

// A socket of any source port, connected to a pipeline of the box. Set-up thread.
Result<nic::SocketPort> open_connected(const nic::Endpoint& box);

// The lowest chunk that a pipeline owns; nothing if it owns none.
std::optional<uint32_t> first_chunk_of(const SessionSpec& session, uint32_t lane);

// The question: a PULL of the lane's first chunk, which it must have, in the round that is open.
// The box answers with a STATUS, or, where the others have finished that round meanwhile, with the
// result, which will be asked for again; nothing else changes. Points to `payload`. Pure.
nic::TxPacket make_probe(const SessionSpec& session, uint32_t lane, uint64_t packet_number,
                         uint64_t now_ns, const wire::PullPayload& payload);
// True for an authentic answer to it. Pure.
bool answers_probe(const SessionSpec& session, uint32_t lane, const nic::RxPacket& packet);

struct FoundSource {
  nic::SocketPort port;
  // Above those of all probes, so that the first packet from `port` moves the box's idea of where
  // this worker is to it, and none of the probes can move it away again.
  uint64_t next_packet_number = 1;
};

// One source for each of `lanes`, in their order, all sought at once. Every one of them owns a
// chunk. An error names the first pipeline that answered from no port before the deadline. Set-up
// thread.
Result<std::vector<FoundSource>> find_sources(const SessionSpec& session,
                                              std::span<const uint32_t> lanes,
                                              const Opening& opening);

}  // namespace pbox::worker
