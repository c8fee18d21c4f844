#include "nic/rdma/gid.h"

#include <algorithm>
#include <bit>

namespace pbox::nic {
namespace {

constexpr std::array<uint8_t, 12> kMappedPrefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

uint32_t common_bits(const wire::Gid& left, const wire::Gid& right) {
  uint32_t bits = 0;
  for (size_t index = 0; index < left.size(); ++index, bits += 8) {
    const auto differing = static_cast<uint8_t>(left[index] ^ right[index]);
    if (differing != 0) return bits + static_cast<uint32_t>(std::countl_zero(differing));
  }
  return bits;
}

std::string list(std::span<const GidEntry> entries) {
  std::string text;
  for (const GidEntry& entry : entries) {
    text += (text.empty() ? "" : ", ") + std::to_string(entry.index) + " (" + to_string(entry.gid) +
            (entry.is_usable ? ")" : ", RoCE v1)");
  }
  return text.empty() ? "the table is empty" : "the table has " + text;
}

}  // namespace

wire::Gid gid_of(const Endpoint& endpoint) {
  if (endpoint.ipv6) return endpoint.address;
  wire::Gid gid{};
  std::copy(kMappedPrefix.begin(), kMappedPrefix.end(), gid.begin());
  std::copy_n(endpoint.address.begin(), 4, gid.begin() + kMappedPrefix.size());
  return gid;
}

std::string to_string(const wire::Gid& gid) {
  Endpoint endpoint;
  if (std::equal(kMappedPrefix.begin(), kMappedPrefix.end(), gid.begin())) {
    std::copy_n(gid.begin() + kMappedPrefix.size(), 4, endpoint.address.begin());
  } else {
    endpoint.address = gid;
    endpoint.ipv6 = true;
  }
  return address_string(endpoint);
}

Result<GidChoice> choose_gid(std::span<const GidEntry> entries, std::optional<uint32_t> index,
                             const std::optional<Endpoint>& near) {
  if (index) {
    const auto found = std::find_if(entries.begin(), entries.end(),
                                    [&](const GidEntry& entry) { return entry.index == *index; });
    if (found != entries.end() && found->is_usable) return GidChoice{*found, "as configured"};
    return Error{ErrorCode::kInvalidArgument,
                 "GID index " + std::to_string(*index) +
                     (found == entries.end() ? " is not in the GID table"
                                             : " is a RoCE v1 GID, which cannot be routed") +
                     "; " + list(entries)};
  }
  const GidEntry* best = nullptr;
  uint32_t best_bits = 0;
  for (const GidEntry& entry : entries) {
    if (!entry.is_usable) continue;
    const uint32_t bits = near ? common_bits(entry.gid, gid_of(*near)) : 0;
    if (best != nullptr && bits <= best_bits) continue;
    best = &entry;
    best_bits = bits;
  }
  if (best == nullptr) {
    return Error{ErrorCode::kNotFound,
                 "the port has no RoCE v2 GID; " + list(entries) +
                     "; give the device's network interface an address and bring it up"};
  }
  return GidChoice{*best, near ? "nearest to " + address_string(*near) : "the first usable one"};
}

}  // namespace pbox::nic
