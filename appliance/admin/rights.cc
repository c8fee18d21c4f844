#include "appliance/admin/rights.h"

#include "base/check.h"

namespace pbox::admin {
namespace {

constexpr std::string_view kName = "NAME";
constexpr bool kYes = true, kNo = false;

// clang-format off
constexpr PathRights kRights[] = {
    //                                                              box   tenant oper. viewer
    {Page::kLive,           "GET",  "/",                             kYes, kNo,   kYes, kYes},
    {Page::kMetrics,        "GET",  "/metrics",                      kYes, kNo,   kYes, kYes},
    {Page::kHealth,         "GET",  "/healthz",                      kYes, kNo,   kYes, kYes},
    {Page::kReadiness,      "GET",  "/readyz",                       kYes, kNo,   kYes, kYes},
    {Page::kBox,            "GET",  "/api/v1/box",                   kNo,  kNo,   kYes, kNo},
    {Page::kBoxes,          "GET",  "/api/v1/boxes",                 kNo,  kNo,   kYes, kNo},
    {Page::kHistory,        "GET",  "/api/v1/history",               kNo,  kNo,   kYes, kNo},
    {Page::kJobs,           "GET",  "/api/v1/jobs",                  kNo,  kNo,   kYes, kNo},
    {Page::kRebalancing,    "GET",  "/api/v1/rebalancing",           kNo,  kNo,   kYes, kNo},
    {Page::kRecorder,       "GET",  "/api/v1/recorder",              kNo,  kNo,   kYes, kNo},
    {Page::kStragglers,     "GET",  "/api/v1/stragglers",            kNo,  kNo,   kYes, kNo},
    {Page::kTrace,          "GET",  "/api/v1/jobs/NAME/trace",       kNo,  kNo,   kYes, kNo},
    {Page::kSnapshot,       "GET",  "/api/v1/jobs/NAME/snapshot",    kNo,  kNo,   kYes, kNo},
    {Page::kJob,            "GET",  "/api/v1/jobs/NAME",             kNo,  kNo,   kYes, kNo},
    {Page::kSetPriorities,  "POST", "/api/v1/jobs/NAME/priorities",  kNo,  kNo,   kYes, kNo},
    {Page::kSetSync,        "POST", "/api/v1/jobs/NAME/sync",        kNo,  kNo,   kYes, kNo},
    {Page::kBeginTrace,     "POST", "/api/v1/jobs/NAME/trace",       kNo,  kNo,   kYes, kNo},
    {Page::kBeginSnapshot,  "POST", "/api/v1/jobs/NAME/snapshot",    kNo,  kNo,   kYes, kNo},
    {Page::kSetDuty,        "POST", "/api/v1/boxes/NAME/drain",      kNo,  kNo,   kYes, kNo},
};
// clang-format on

// Returns the part of the path that stands for NAME; an empty one if the pattern has no NAME.
std::optional<std::string_view> match(std::string_view pattern, std::string_view path) {
  const size_t at = pattern.find(kName);
  if (at == std::string_view::npos) {
    return pattern == path ? std::optional<std::string_view>("") : std::nullopt;
  }
  const std::string_view before = pattern.substr(0, at), after = pattern.substr(at + kName.size());
  const bool fits = path.starts_with(before) && path.ends_with(after) &&
                    path.size() > before.size() + after.size();
  if (!fits) return std::nullopt;
  return path.substr(at, path.size() - before.size() - after.size());
}

bool may_use(const PathRights& row, tls::Role role) {
  switch (role) {
    case tls::Role::kBox: return row.box;
    case tls::Role::kTenant: return row.tenant;
    case tls::Role::kOperator: return row.operating;
    case tls::Role::kViewer: return row.viewing;
  }
  PBOX_CHECK(false);
  return false;
}

}  // namespace

std::span<const PathRights> path_rights() {
  return kRights;
}

std::optional<FoundPath> find_path(std::string_view method, std::string_view path) {
  if (method == "HEAD") method = "GET";
  for (const PathRights& row : kRights) {
    if (method != row.method) continue;
    if (const auto name = match(row.path, path)) return FoundPath{&row, *name};
  }
  return std::nullopt;
}

Status authorise(const Principal& client, const PathRights& row) {
  if (!client.role) {
    return Error{ErrorCode::kInvalidArgument,
                 client.name + " may not use this server: " + client.remedy};
  }
  if (may_use(row, *client.role)) return ok_status();
  return Error{ErrorCode::kInvalidArgument,
               "the keys of " + client.name + " do not allow " + row.method + " of " + row.path +
                   "; " +
                   (row.viewing ? "it is for operators and viewers (`pboxctl keys viewer`)"
                                : "it is for operators (`pboxctl keys operator`)")};
}

}  // namespace pbox::admin
