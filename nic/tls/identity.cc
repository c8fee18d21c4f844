#include "nic/tls/identity.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/glob.h"
#include "base/limits.h"

namespace pbox::tls {
namespace {

constexpr std::string_view kScheme = "pbox://";
constexpr size_t kNameBytesMax = 64;
constexpr char kForms[] =
    "an identity is pbox://CLUSTER/box/NAME, pbox://CLUSTER/tenant/TENANT/job/GLOB/rank/RANGE, "
    "pbox://CLUSTER/operator or pbox://CLUSTER/viewer";

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_' || c == '.';
}

Error invalid_identity(const std::string& uri, const std::string& why) {
  return {ErrorCode::kInvalidArgument, "identity '" + uri + "': " + why};
}

// `what`: "cluster", "box" or "tenant".
Status check_name(const std::string& uri, const char* what, const std::string& name) {
  if (is_identity_name(name)) return ok_status();
  return invalid_identity(uri, std::string("the ") + what + " '" + name +
                                   "' must consist of 1 to 64 letters, digits, '-', '_' and '.'");
}

std::vector<std::string> split_path(const std::string& text) {
  std::vector<std::string> segments;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('/', begin), text.size());
    segments.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return segments;
}

// Leading zeros are refused, so that each rank is written in one way only.
bool read_rank(std::string_view text, uint32_t& rank) {
  if (text.empty() || (text.size() > 1 && text[0] == '0')) return false;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), rank);
  return read.ec == std::errc() && read.ptr == text.data() + text.size() &&
         rank < limits::kWorkersPerJobMax;
}

// `path` is what follows the cluster: {"tenant", TENANT, "job", GLOB, "rank", RANGE}.
Result<Identity> parse_tenant(const std::string& uri, const std::vector<std::string>& path,
                              Identity identity) {
  if (path.size() != 6 || path[2] != "job" || path[4] != "rank")
    return invalid_identity(uri, kForms);
  if (const Status named = check_name(uri, "tenant", path[1]); !named) return named.error();
  if (!is_job_glob(path[3])) {
    return invalid_identity(
        uri, "the job '" + path[3] +
                 "' must consist of 1 to 64 letters, digits, '-', '_', '.', '*' and '?'");
  }
  const auto ranks = parse_ranks(path[5]);
  if (!ranks) return invalid_identity(uri, ranks.error().message);
  identity.tenant = path[1];
  identity.job_glob = path[3];
  identity.ranks = *ranks;
  return identity;
}

}  // namespace

const char* to_string(Role role) {
  switch (role) {
    case Role::kBox: return "box";
    case Role::kTenant: return "tenant";
    case Role::kOperator: return "operator";
    case Role::kViewer: return "viewer";
  }
  PBOX_CHECK(false);
  return "";
}

bool is_identity_name(const std::string& text) {
  return !text.empty() && text.size() <= kNameBytesMax &&
         std::all_of(text.begin(), text.end(), is_name_character);
}

bool is_job_glob(const std::string& text) {
  return !text.empty() && text.size() <= kNameBytesMax &&
         std::all_of(text.begin(), text.end(),
                     [](char c) { return is_name_character(c) || c == '*' || c == '?'; });
}

Result<RankRange> parse_ranks(const std::string& text) {
  RankRange ranks;
  if (text == "*") return ranks;
  const size_t dash = std::min(text.find('-'), text.size());
  const std::string_view whole = text;
  if (dash == text.size() || !read_rank(whole.substr(0, dash), ranks.first) ||
      !read_rank(whole.substr(dash + 1), ranks.last) || ranks.first > ranks.last) {
    return Error{ErrorCode::kInvalidArgument,
                 "the ranks '" + text +
                     "' must be '*' or FIRST-LAST, such as 0-63, with ranks below " +
                     std::to_string(limits::kWorkersPerJobMax)};
  }
  return ranks;
}

Result<Identity> parse_identity(const std::string& uri) {
  if (!uri.starts_with(kScheme)) return invalid_identity(uri, kForms);
  const auto segments = split_path(uri.substr(kScheme.size()));
  PBOX_CHECK(!segments.empty());
  Identity identity{.cluster = segments[0]};
  if (const Status named = check_name(uri, "cluster", identity.cluster); !named) {
    return named.error();
  }
  const std::vector<std::string> path(segments.begin() + 1, segments.end());
  if (path.size() == 1 && (path[0] == "operator" || path[0] == "viewer")) {
    identity.role = path[0] == "operator" ? Role::kOperator : Role::kViewer;
    return identity;
  }
  if (path.size() == 2 && path[0] == "box") {
    if (const Status named = check_name(uri, "box", path[1]); !named) return named.error();
    identity.role = Role::kBox;
    identity.box = path[1];
    return identity;
  }
  if (path.empty() || path[0] != "tenant") return invalid_identity(uri, kForms);
  identity.role = Role::kTenant;
  return parse_tenant(uri, path, std::move(identity));
}

std::string to_uri(const Identity& identity) {
  const std::string root = std::string(kScheme) + identity.cluster + "/";
  switch (identity.role) {
    case Role::kBox: return root + "box/" + identity.box;
    case Role::kTenant: {
      const RankRange& ranks = identity.ranks;
      const std::string range =
          ranks == RankRange{} ? "*"
                               : std::to_string(ranks.first) + "-" + std::to_string(ranks.last);
      return root + "tenant/" + identity.tenant + "/job/" + identity.job_glob + "/rank/" + range;
    }
    case Role::kOperator:
    case Role::kViewer: return root + to_string(identity.role);
  }
  PBOX_CHECK(false);
  return "";
}

bool owns_job(const Identity& tenant, const std::string& job) {
  if (tenant.role != Role::kTenant) return false;
  const std::string prefix = tenant.tenant + "/";
  return job.starts_with(prefix) && job.size() > prefix.size() &&
         matches_glob(tenant.job_glob, std::string_view(job).substr(prefix.size()));
}

}  // namespace pbox::tls
