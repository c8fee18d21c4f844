// The kinds of port that this build has. Which one a box uses is decided at start; from there on
// each pipeline's loop is instantiated for its kind.
#pragma once

#include <concepts>
#include <cstddef>
#include <optional>
#include <string>
#include <variant>

#include "nic/socket/port.h"
#ifdef PBOX_HAS_DPDK
#include "nic/dpdk/eal.h"
#include "nic/dpdk/port.h"
#endif
#ifdef PBOX_HAS_RDMA
#include "nic/rdma/port.h"
#endif
#include "nic/wire/queue_pair.h"

namespace pbox::appliance {

using AnyPort = std::variant<nic::SocketPort
#ifdef PBOX_HAS_DPDK
                             ,
                             nic::DpdkPort
#endif
#ifdef PBOX_HAS_RDMA
                             ,
                             nic::RdmaPort
#endif
                             >;

// Ports whose devices read payloads where they lie must know the memory of each job.
template <typename P>
concept ReadsInPlace = requires(P port, const std::byte* memory, size_t bytes) {
  { port.add_memory(memory, bytes) } -> std::same_as<Status>;
  { port.remove_memory(memory, bytes) } -> std::same_as<bool>;
};

// Ports to which peers are connected, one by one, while they are polled. The owner is whoever has
// to do with the peer.
template <typename P>
concept ConnectsPeers = requires(P port, uint64_t owner, const wire::QueuePairAddress& peer) {
  { port.connect(owner, peer) } -> std::same_as<Result<wire::QueuePairAddress>>;
  // False if the owner had none.
  { port.close(owner) } -> std::same_as<bool>;
  // How many that were closed the polling thread has not let go of yet.
  { port.reap() } -> std::same_as<size_t>;
};

// Ports whose devices tell of themselves. Control thread.
template <typename P>
concept TellsEvents = requires(P port) {
  { port.next_event() } -> std::same_as<std::optional<std::string>>;
};

// What the thread that polls a port must hold.
template <typename P>
struct PortThread {
  Status status() const { return ok_status(); }
};
#ifdef PBOX_HAS_DPDK
template <>
struct PortThread<nic::DpdkPort> : nic::DpdkThread {};
#endif

}  // namespace pbox::appliance
