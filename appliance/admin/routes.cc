#include "appliance/admin/routes.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "appliance/admin/json_view.h"
#include "appliance/admin/live_page.h"
#include "appliance/admin/metrics.h"
#include "base/check.h"

namespace pbox::admin {
namespace {

constexpr const char* kJsonType = "application/json";
constexpr const char* kHtmlType = "text/html; charset=utf-8";
constexpr const char* kTextType = "text/plain; charset=utf-8";
constexpr const char* kMetricsType = "text/plain; version=0.0.4; charset=utf-8";

AdminResponse metrics(const AdminSource& source) {
  return {200, kMetricsType, metrics_text(source, read_process_usage())};
}

AdminResponse health(const AdminSource& source) {
  return {200, kJsonType, health_json(source.box())};
}

AdminResponse readiness(const AdminSource& source) {
  const BoxView box = source.box();
  return {not_ready_reason(box).empty() ? 200u : 503u, kJsonType, readiness_json(box)};
}

AdminResponse jobs(const AdminSource& source) {
  return {200, kJsonType, jobs_json(source.jobs())};
}

AdminResponse stragglers(const AdminSource& source) {
  return {200, kJsonType, stragglers_json(source.stragglers())};
}

AdminResponse history(const AdminSource& source) {
  return {200, kJsonType, history_json(source.history())};
}

AdminResponse boxes(const AdminSource& source) {
  return {200, kJsonType, boxes_json(source.cluster())};
}

AdminResponse rebalancing(const AdminSource& source) {
  const auto leader = source.cluster().leader;
  return {200, kJsonType, balancing_json(source.balancing(), leader ? leader->name : "")};
}

AdminResponse box(const AdminSource& source) {
  return {200, kJsonType, box_json(source.box(), source.pipelines())};
}

AdminResponse recorder(const AdminSource& source) {
  auto images = source.flight();
  if (!images) return refuse(503, images.error().message);
  return {200, "application/octet-stream", std::move(*images)};
}

std::optional<unsigned> hex_value(char digit) {
  if (digit >= '0' && digit <= '9') return static_cast<unsigned>(digit - '0');
  if (digit >= 'A' && digit <= 'F') return static_cast<unsigned>(digit - 'A' + 10);
  if (digit >= 'a' && digit <= 'f') return static_cast<unsigned>(digit - 'a' + 10);
  return std::nullopt;
}

// Returns nullopt if a '%' is not followed by two hexadecimal digits.
std::optional<std::string> percent_decode(std::string_view text) {
  std::string decoded;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '%') {
      decoded += text[at];
      continue;
    }
    if (at + 2 >= text.size()) return std::nullopt;
    const auto high = hex_value(text[at + 1]);
    const auto low = hex_value(text[at + 2]);
    if (!high || !low) return std::nullopt;
    decoded += static_cast<char>(*high * 16 + *low);
    at += 2;
  }
  return decoded;
}

AdminResponse job(const AdminSource& source, std::string_view encoded_name) {
  const auto name = percent_decode(encoded_name);
  if (!name) return refuse(400, "the job's name is not percent-encoded");
  const std::vector<control::JobView> views = source.jobs();
  const auto view = std::find_if(views.begin(), views.end(), [&name](const control::JobView& job) {
    return job.name == *name;
  });
  // Shows the name as it was sent, because a decoded name may contain a line break.
  if (view == views.end()) return refuse(404, "no job '" + std::string(encoded_name) + "' here");
  return {200, kJsonType, job_json(*view)};
}

AdminResponse set_priorities(AdminSource& source, std::string_view encoded_name,
                             const std::string& name, std::string_view body) {
  const auto policy = parse_priority_policy(body);
  if (!policy) return refuse(400, policy.error().message);
  if (!source.set_priorities(name, *policy)) {
    return refuse(404, "no job '" + std::string(encoded_name) + "' here");
  }
  return job(source, encoded_name);
}

AdminResponse set_sync(AdminSource& source, std::string_view encoded_name, const std::string& name,
                       std::string_view body) {
  const auto change = parse_sync_change(body);
  if (!change) return refuse(400, change.error().message);
  const Status set = source.set_sync(name, *change);
  if (set) return job(source, encoded_name);
  if (set.error().code == ErrorCode::kNotFound) {
    return refuse(404, "no job '" + std::string(encoded_name) + "' here");
  }
  return refuse(409, set.error().message);
}

AdminResponse refuse_trace(std::string_view encoded_name, const Error& error) {
  if (error.code == ErrorCode::kNotFound) {
    return refuse(404, "no job '" + std::string(encoded_name) + "' here");
  }
  return refuse(409, error.message);
}

AdminResponse begin_trace(AdminSource& source, std::string_view encoded_name,
                          const std::string& name, std::string_view body) {
  const auto seconds = parse_trace_seconds(body);
  if (!seconds) return refuse(400, seconds.error().message);
  const Status begun = source.begin_trace(name, *seconds);
  if (!begun) return refuse_trace(encoded_name, begun.error());
  return {202, kJsonType, "{}\n"};
}

AdminResponse trace(AdminSource& source, std::string_view encoded_name) {
  const auto name = percent_decode(encoded_name);
  if (!name) return refuse(400, "the job's name is not percent-encoded");
  const auto view = source.trace(*name);
  if (!view) return refuse_trace(encoded_name, view.error());
  return {200, kJsonType, trace_json(*view)};
}

AdminResponse begin_snapshot(AdminSource& source, std::string_view encoded_name,
                             const std::string& name, std::string_view body) {
  const auto timeout_s = parse_snapshot_timeout(body);
  if (!timeout_s) return refuse(400, timeout_s.error().message);
  const Status begun = source.begin_snapshot(name, *timeout_s);
  if (begun) return {202, kJsonType, "{}\n"};
  if (begun.error().code == ErrorCode::kNotFound) {
    return refuse(404, "no job '" + std::string(encoded_name) + "' here");
  }
  return refuse(409, begun.error().message);
}

AdminResponse snapshot(AdminSource& source, std::string_view encoded_name) {
  const auto name = percent_decode(encoded_name);
  if (!name) return refuse(400, "the job's name is not percent-encoded");
  const auto view = source.snapshot(*name);
  if (view) return {200, kJsonType, snapshot_json(*view)};
  return refuse(
      404, "this box has not been asked for a snapshot of job '" + std::string(encoded_name) + "'");
}

AdminResponse set_duty(AdminSource& source, std::string_view encoded_name, const std::string& name,
                       std::string_view body) {
  const auto duty = parse_duty(body);
  if (!duty) return refuse(400, duty.error().message);
  const Status begun = source.set_duty(name, *duty);
  if (begun) return {202, kJsonType, boxes_json(source.cluster())};
  if (begun.error().code == ErrorCode::kNotFound) {
    return refuse(404, "no box '" + std::string(encoded_name) + "' in the cluster");
  }
  return refuse(409, begun.error().message);
}

// Carries out a POST. `encoded_name`: the name as it was sent; `name`: the same, decoded.
AdminResponse apply(AdminSource& source, Page page, std::string_view encoded_name,
                    const std::string& name, std::string_view body) {
  switch (page) {
    case Page::kSetPriorities: return set_priorities(source, encoded_name, name, body);
    case Page::kSetSync: return set_sync(source, encoded_name, name, body);
    case Page::kBeginTrace: return begin_trace(source, encoded_name, name, body);
    case Page::kBeginSnapshot: return begin_snapshot(source, encoded_name, name, body);
    case Page::kSetDuty: return set_duty(source, encoded_name, name, body);
    default: break;
  }
  PBOX_CHECK(false);
  return refuse(500, "a page without an answer");
}

AdminResponse show(AdminSource& source, Page page, std::string_view encoded_name) {
  switch (page) {
    case Page::kLive: return {200, kHtmlType, std::string(kLivePage)};
    case Page::kMetrics: return metrics(source);
    case Page::kHealth: return health(source);
    case Page::kReadiness: return readiness(source);
    case Page::kBox: return box(source);
    case Page::kBoxes: return boxes(source);
    case Page::kHistory: return history(source);
    case Page::kJobs: return jobs(source);
    case Page::kRebalancing: return rebalancing(source);
    case Page::kRecorder: return recorder(source);
    case Page::kStragglers: return stragglers(source);
    case Page::kTrace: return trace(source, encoded_name);
    case Page::kSnapshot: return snapshot(source, encoded_name);
    case Page::kJob: return job(source, encoded_name);
    default: break;
  }
  PBOX_CHECK(false);
  return refuse(500, "a page without an answer");
}

// Changes accept JSON only, against cross-site requests: before a page of another origin may send
// JSON, its browser asks this server (Fetch standard, CORS-preflight), which refuses.
AdminResponse change(AdminSource& source, const FoundPath& found, const AdminRequest& request) {
  if (!request.content_type.starts_with(kJsonType)) {
    return refuse(415, "the content type must be " + std::string(kJsonType));
  }
  const auto name = percent_decode(found.name);
  if (!name) return refuse(400, "the name is not percent-encoded");
  return apply(source, found.row->page, found.name, *name, request.body);
}

}  // namespace

AdminResponse refuse(unsigned status, std::string_view what) {
  std::vector<std::string> reads, changes;
  for (const PathRights& row : path_rights()) {
    (row.method == std::string_view("POST") ? changes : reads).emplace_back(row.path);
  }
  std::string text(what);
  text += kPagesFollow;
  text += "GET and HEAD of";
  for (const std::string& path : reads) text.append(" ").append(path);
  text += ", and POST of ";
  for (size_t index = 0; index < changes.size(); ++index) {
    const bool is_last = index + 1 == changes.size();
    text.append(index == 0 ? "" : is_last ? " and " : ", ").append(changes[index]);
  }
  return {status, kTextType, text + "\n"};
}

AdminResponse answer(AdminSource& source, const Principal& client, const AdminRequest& request) {
  const bool reads = request.method == "GET" || request.method == "HEAD";
  if (!reads && request.method != "POST") {
    return refuse(405, "method " + std::string(request.method) + " is not allowed");
  }
  if (reads && request.has_body) return refuse(400, "a GET must have no body");
  if (!request.target.starts_with('/')) return refuse(400, "the target is not a path");

  const std::string_view path = request.target.substr(0, request.target.find('?'));
  const auto found = find_path(request.method, path);
  if (!found && reads) return refuse(404, "no page '" + std::string(path) + "'");
  if (!found) return refuse(405, "method POST is not allowed for '" + std::string(path) + "'");
  if (const Status allowed = authorise(client, *found->row); !allowed) {
    return {403, kTextType, allowed.error().message + "\n"};
  }
  return reads ? show(source, found->row->page, found->name) : change(source, *found, request);
}

}  // namespace pbox::admin
