// One end of a reliable RDMA connection as a value: what two peers tell each other on the control
// connection (control.proto, QueuePair). No verbs in here.
#pragma once

#include <array>
#include <cstdint>

#include "base/result.h"
#include "nic/wire/control.pb.h"
#include "nic/wire/landing.h"

namespace pbox::wire {

using Gid = std::array<uint8_t, 16>;  // network order; IPv4 as ::ffff:a.b.c.d

struct QueuePairAddress {
  Gid gid{};
  uint32_t number = 0;                // in [2, 2^24): 0 and 1 are the fabric's own
  uint32_t packet_sequence = 0;       // in [0, 2^24)
  uint16_t lid = 0;                   // 0: none, as over Ethernet
  uint32_t mtu_bytes = 0;             // 256, 512, 1024, 2048 or 4096
  uint32_t landing_slots_wanted = 0;  // a worker's wish, any number
  LandingRing landing = {};           // a box's answer to it
  bool operator==(const QueuePairAddress&) const = default;
};

// Errors name the field. Pure; any thread.
Result<QueuePairAddress> parse_queue_pair(const proto::QueuePair& message);
void write_queue_pair(const QueuePairAddress& address, proto::QueuePair& message);

}  // namespace pbox::wire
