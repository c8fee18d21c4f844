// The identity of each end of a control connection, and the jobs that a tenant may join. A
// certificate states its identity as one URI among its alternative names:
//
//   pbox://CLUSTER/box/NAME                        a box of the cluster
//   pbox://CLUSTER/tenant/TENANT/job/GLOB/rank/RANGE   ranks of the tenant's jobs
//   pbox://CLUSTER/operator                        a person who operates boxes
//   pbox://CLUSTER/viewer                          a person or program that only looks
//
// CLUSTER, NAME and TENANT have 1 to 64 letters, digits, '-', '_' and '.'. GLOB may also contain
// '*', which matches any characters, and '?', which matches one. RANGE is "0-63" or "*". These are
// values; nothing here uses OpenSSL.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace pbox::tls {

enum class Role : uint8_t { kBox, kTenant, kOperator, kViewer };

// Returns "box", "tenant", "operator" or "viewer".
const char* to_string(Role role);

// Ranks in [first, last].
struct RankRange {
  static constexpr uint32_t kUnbounded = UINT32_MAX;
  uint32_t first = 0;
  uint32_t last = kUnbounded;

  bool contains(uint32_t rank) const { return first <= rank && rank <= last; }
  bool operator==(const RankRange&) const = default;
};

struct Identity {
  Role role = Role::kViewer;
  std::string cluster = {};
  std::string box = {};     // the box's name; kBox only
  std::string tenant = {};  // kTenant only, like the members below
  std::string job_glob = {};
  RankRange ranks = {};

  bool operator==(const Identity&) const = default;
};

// Parses a URI. Errors name the part of it that is wrong, and its value.
Result<Identity> parse_identity(const std::string& uri);
// Returns the URI. The identity must be valid, as parse_identity() returns it.
std::string to_uri(const Identity& identity);

// Parses RANGE. The error quotes the text.
Result<RankRange> parse_ranks(const std::string& text);

// Returns whether the text may stand for CLUSTER, NAME or TENANT.
bool is_identity_name(const std::string& text);
// Returns whether the text may stand for GLOB.
bool is_job_glob(const std::string& text);

// Returns whether the job belongs to the tenant: its name is TENANT/REST, and GLOB matches REST.
bool owns_job(const Identity& tenant, const std::string& job);

}  // namespace pbox::tls
