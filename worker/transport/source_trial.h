// Finds, by trial, source ports whose packets a NIC's unknown hash leads to the right queues
// (QueueAffinity::kSourceTrial). A box silently drops a packet that arrives on the wrong queue. So
// a port that gets an answer is a port that leads to the right queue.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "nic/socket/port.h"
#include "worker/transport/transport.h"

namespace pbox::worker {

// Opens a socket with any source port, connected to a pipeline of the box.
Result<nic::SocketPort> open_connected(const nic::Endpoint& box);

// Returns the lowest chunk that a pipeline owns; nullopt if it owns none.
std::optional<uint32_t> first_chunk_of(const SessionSpec& session, uint32_t lane);

// Builds the probe: a PULL of the lane's first chunk, which it must have, for the round that is
// open. The box answers with a STATUS. If the other ranks have finished that round meanwhile, it
// answers with the result, which the worker will ask for again. Nothing else changes. The packet
// points to `payload`, or, in a session that encrypts, to `room`, which is as large.
nic::TxPacket make_probe(const SessionSpec& session, uint32_t lane, uint64_t now_ns,
                         std::span<const std::byte> payload, std::byte* room);
// The payload of a PULL whose sender holds nothing.
inline constexpr std::array<std::byte, sizeof(wire::PullPayload)> kHoldsNothing{};
// Returns the packet's header if the lane's pipeline has sent it in this session's epoch.
std::optional<wire::Header> open_answer(const SessionSpec& session, uint32_t lane,
                                        const nic::RxPacket& packet);
// Returns whether the packet is an authentic answer to the probe.
bool answers_probe(const SessionSpec& session, uint32_t lane, const nic::RxPacket& packet);

// Finds a source for each of `lanes`, in their order; all are searched at the same time. Each lane
// must own a chunk. An error names the first pipeline that did not answer any port before the
// deadline. The probes have lower numbers than any later packet: the first packet from the source
// moves this worker's address on the box to that port, and no late probe can move it away again.
// Blocks.
Result<std::vector<nic::SocketPort>> find_sources(const SessionSpec& session,
                                                  std::span<const uint32_t> lanes,
                                                  const Opening& opening);

}  // namespace pbox::worker
