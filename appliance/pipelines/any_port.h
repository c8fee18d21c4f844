// The kinds of port that this build has. A box chooses one at start; each pipeline's loop is
// instantiated for every kind.
#pragma once

#include <concepts>
#include <cstddef>
#include <optional>
#include <string>
#include <variant>

#include "nic/shm/port.h"
#ifdef PBOX_HAS_DPDK
#include "nic/dpdk/eal.h"
#include "nic/dpdk/port.h"
#endif
#ifdef PBOX_HAS_RDMA
#include "nic/rdma/port.h"
#endif
#include "nic/wire/queue_pair.h"

namespace pbox::pipelines {

using AnyPort = std::variant<nic::ShmPort
#ifdef PBOX_HAS_DPDK
                             ,
                             nic::DpdkPort
#endif
#ifdef PBOX_HAS_RDMA
                             ,
                             nic::RdmaPort
#endif
                             >;

// Ports whose devices or workers read payloads in place: they must know the memory of each job.
template <typename P>
concept ReadsInPlace = requires(P port, const std::byte* memory, size_t bytes) {
  { port.add_memory(memory, bytes) } -> std::same_as<Status>;
  { port.remove_memory(memory, bytes) } -> std::same_as<bool>;
};

// Ports that have a connection with each peer. Their calls are allowed while another thread polls
// the port. `owner` names the session that uses the connection.
template <typename P>
concept HasConnections = requires(P port, uint64_t owner) {
  // Returns false if the owner had no connection.
  { port.close(owner) } -> std::same_as<bool>;
  // Returns the number of closed connections that the polling thread has not released yet.
  { port.reap() } -> std::same_as<size_t>;
};

// Ports whose connections are queue pairs.
template <typename P>
concept ConnectsPeers = requires(P port, uint64_t owner, const wire::QueuePairAddress& peer) {
  { port.connect(owner, peer) } -> std::same_as<Result<wire::QueuePairAddress>>;
};

// Ports whose connections are lanes of shared memory.
template <typename P>
concept SharesMemory = requires(P port, uint64_t owner, nic::LaneGrant grant,
                                nic::ReceivedHello hello, Descriptor connection) {
  { port.attach(owner, grant, hello, connection) } -> std::same_as<Status>;
};

// Ports whose devices report events. Control thread.
template <typename P>
concept TellsEvents = requires(P port) {
  { port.next_event() } -> std::same_as<std::optional<std::string>>;
};

// State that a thread holds while it polls a port.
template <typename P>
struct PortThread {
  Status status() const { return ok_status(); }
};
#ifdef PBOX_HAS_DPDK
template <>
struct PortThread<nic::DpdkPort> : nic::DpdkThread {};
#endif

}  // namespace pbox::pipelines
