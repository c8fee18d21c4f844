// Choosing one of a port's addresses (GIDs). All functions are pure; any thread.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "base/result.h"
#include "nic/endpoint.h"
#include "nic/wire/queue_pair.h"

namespace pbox::nic {

// An entry of a port's GID table.
struct GidEntry {
  uint32_t index = 0;
  wire::Gid gid{};
  bool is_usable = false;  // InfiniBand, or RoCE v2 (routed over UDP); not RoCE v1
};

struct GidChoice {
  GidEntry entry;
  std::string reason;  // for logs: "as configured", "nearest to 10.9.0.1"
};

// Returns the entry with this `index`, if one is given. Otherwise returns the usable entry that has
// the most leading bits in common with `near`, the address of the peer or of this host; of equal
// entries the first. Errors list the entries.
Result<GidChoice> choose_gid(std::span<const GidEntry> entries, std::optional<uint32_t> index,
                             const std::optional<Endpoint>& near);

// Converts an IP address to a GID, and a GID to text: "10.9.0.1" if it is an IPv4 address,
// otherwise an IPv6 address.
wire::Gid gid_of(const Endpoint& endpoint);
std::string to_string(const wire::Gid& gid);

}  // namespace pbox::nic
