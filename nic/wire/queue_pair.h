// One end of a reliable RDMA connection as a value. The peers exchange it on the control connection
// (message QueuePair in control.proto). This file does not call the RDMA library.
#pragma once

#include <array>
#include <cstdint>

#include "base/result.h"
#include "nic/wire/control.pb.h"
#include "nic/wire/landing.h"

namespace pbox::wire {

using Gid = std::array<uint8_t, 16>;  // network order; an IPv4 address is ::ffff:a.b.c.d

struct QueuePairAddress {
  Gid gid{};
  uint32_t number = 0;                // in [2, 2^24); the fabric reserves 0 and 1
  uint32_t packet_sequence = 0;       // number of the first packet sent, in [0, 2^24)
  uint16_t lid = 0;                   // InfiniBand address; 0 over Ethernet
  uint32_t mtu_bytes = 0;             // 256, 512, 1024, 2048 or 4096
  uint32_t landing_slots_wanted = 0;  // number of slots that a worker asks for; any value
  LandingRing landing = {};           // the ring that the box gives the worker
  bool operator==(const QueuePairAddress&) const = default;
};

// Convert from and to the message. parse_queue_pair() refuses values that no device can have; its
// error names the field. Both are pure; any thread may call them.
Result<QueuePairAddress> parse_queue_pair(const proto::QueuePair& message);
void write_queue_pair(const QueuePairAddress& address, proto::QueuePair& message);

}  // namespace pbox::wire
