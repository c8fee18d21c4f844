// The kinds of port that this build has. Which one a box uses is decided at start; from there on
// each pipeline's loop is instantiated for its kind.
#pragma once

#include <concepts>
#include <cstddef>
#include <variant>

#include "nic/socket/port.h"
#ifdef PBOX_HAS_DPDK
#include "nic/dpdk/eal.h"
#include "nic/dpdk/port.h"
#endif

namespace pbox::appliance {

#ifdef PBOX_HAS_DPDK
using AnyPort = std::variant<nic::SocketPort, nic::DpdkPort>;
#else
using AnyPort = std::variant<nic::SocketPort>;
#endif

// Ports whose devices read payloads where they lie must know the memory of each job.
template <typename P>
concept ReadsInPlace = requires(P port, const std::byte* memory, size_t bytes) {
  { port.add_memory(memory, bytes) } -> std::same_as<Status>;
  { port.remove_memory(memory, bytes) } -> std::same_as<bool>;
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
