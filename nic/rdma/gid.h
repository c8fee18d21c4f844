// Which of a port's addresses (GIDs) to use. Pure.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "base/result.h"
#include "nic/endpoint.h"
#include "nic/wire/queue_pair.h"

namespace pbox::nic {

struct GidEntry {
  uint32_t index = 0;
  wire::Gid gid{};
  bool is_usable = false;  // RoCE v2, which is routed UDP, or InfiniBand; not RoCE v1
};

struct GidChoice {
  GidEntry entry;
  std::string reason;
};

// `index`, if it is given; else the usable entry that has most leading bits in common with
// `near` (the other side's address, or one's own), then the lowest. Errors say what there is.
Result<GidChoice> choose_gid(std::span<const GidEntry> entries, std::optional<uint32_t> index,
                             const std::optional<Endpoint>& near);

// An IP address as a GID, and a GID as text: "10.9.0.1" where it is an IPv4 address, else IPv6's.
wire::Gid gid_of(const Endpoint& endpoint);
std::string to_string(const wire::Gid& gid);

}  // namespace pbox::nic
