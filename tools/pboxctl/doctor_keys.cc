// Checks the keys with which the doctor joins a box, and finds the names that its jobs may have.
#include <ctime>

#include "nic/tls/credentials.h"
#include "tools/pboxctl/doctor_checks.h"

namespace pboxctl {
namespace {

constexpr int64_t kWarningSeconds = 7 * 24 * 3600;  // as early as a box warns of its own keys

// Returns a pattern of job names that these keys allow, with one '*' for the doctor's own name;
// empty if the keys' pattern has no '*'.
std::string pattern_of(const pbox::tls::Identity& tenant) {
  std::string pattern = tenant.tenant + "/";
  bool has_star = false;
  for (const char character : tenant.job_glob) {
    if (character == '?') {
      pattern += 'x';
    } else if (character != '*' || !has_star) {
      pattern += character;
      has_star = has_star || character == '*';
    }
  }
  return has_star ? pattern : "";
}

}  // namespace

bool use_keys(const std::string& folder, BoxPath& path, Report& report) {
  if (folder.empty()) return true;
  const auto keys = pbox::tls::Credentials::load(folder);
  if (!keys) {
    report.fail("keys", keys.error().message, "pboxctl keys show " + folder + " checks them");
    return false;
  }
  const pbox::tls::Identity& identity = (*keys)->identity();
  if (identity.role == pbox::tls::Role::kTenant) path.job_pattern = pattern_of(identity);
  const bool may_join =
      identity.role == pbox::tls::Role::kTenant || identity.role == pbox::tls::Role::kBox;
  if (!may_join || path.job_pattern.empty() || !identity.ranks.contains(0)) {
    report.fail("keys",
                "the keys of " + pbox::tls::to_uri(identity) +
                    " do not allow the test jobs of pboxctl doctor",
                "use keys for jobs TENANT/* with rank 0 (pboxctl keys job)");
    return false;
  }
  path.keys = folder;
  const std::string finding =
      pbox::tls::to_uri(identity) + ", until " + pbox::tls::utc_text((*keys)->expires_unix_s());
  if ((*keys)->expires_unix_s() - std::time(nullptr) > kWarningSeconds) {
    report.ok("keys", finding);
  } else {
    report.warn("keys", finding, "make new keys with pboxctl keys --force, in " + folder);
  }
  return true;
}

ProbeOptions BoxPath::probe(const char* purpose, uint32_t path_mtu) const {
  return {.box = box(),
          .port = worker_port,
          .purpose = purpose,
          .keys = keys,
          .job_pattern = job_pattern,
          .path_mtu = path_mtu};
}

}  // namespace pboxctl
