#include "appliance/admin/routes.h"

#include <algorithm>
#include <optional>

#include "appliance/admin/json_view.h"
#include "appliance/admin/live_page.h"
#include "appliance/admin/metrics.h"

namespace pbox::admin {
namespace {

constexpr std::string_view kJobsPrefix = "/api/v1/jobs/";
constexpr std::string_view kPrioritiesSuffix = "/priorities";
constexpr std::string_view kTraceSuffix = "/trace";
constexpr std::string_view kSnapshotSuffix = "/snapshot";
constexpr std::string_view kBoxesPrefix = "/api/v1/boxes/";
constexpr std::string_view kDrainSuffix = "/drain";
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

struct Route {
  const char* path;
  AdminResponse (*respond)(const AdminSource&);
};

constexpr Route kRoutes[] = {
    {"/metrics", metrics},          {"/healthz", health},
    {"/readyz", readiness},         {"/api/v1/box", box},
    {"/api/v1/boxes", boxes},       {"/api/v1/history", history},
    {"/api/v1/jobs", jobs},         {"/api/v1/rebalancing", rebalancing},
    {"/api/v1/recorder", recorder}, {"/api/v1/stragglers", stragglers},
};

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

AdminResponse set_draining(AdminSource& source, std::string_view encoded_name,
                           const std::string& name, std::string_view body) {
  const auto draining = parse_draining(body);
  if (!draining) return refuse(400, draining.error().message);
  const Status begun = source.set_draining(name, *draining);
  if (begun) return {202, kJsonType, boxes_json(source.cluster())};
  if (begun.error().code == ErrorCode::kNotFound) {
    return refuse(404, "no box '" + std::string(encoded_name) + "' in the cluster");
  }
  return refuse(409, begun.error().message);
}

bool is_between(std::string_view path, std::string_view prefix, std::string_view suffix) {
  return path.starts_with(prefix) && path.ends_with(suffix) &&
         path.size() > prefix.size() + suffix.size();
}

struct JobPage {
  std::string_view suffix;
  AdminResponse (*respond)(AdminSource&, std::string_view encoded_name);
};

constexpr JobPage kJobPages[] = {{kTraceSuffix, trace}, {kSnapshotSuffix, snapshot}};

struct Change {
  std::string_view prefix, suffix;  // the path around the name of the job or box
  AdminResponse (*respond)(AdminSource&, std::string_view, const std::string&, std::string_view);
};

constexpr Change kChanges[] = {
    {kJobsPrefix, kPrioritiesSuffix, set_priorities},
    {kJobsPrefix, kTraceSuffix, begin_trace},
    {kJobsPrefix, kSnapshotSuffix, begin_snapshot},
    {kBoxesPrefix, kDrainSuffix, set_draining},
};

// Changes accept JSON only, against cross-site requests: before a page of another origin may send
// JSON, its browser asks this server (Fetch standard, CORS-preflight), which refuses.
AdminResponse change(AdminSource& source, const AdminRequest& request, std::string_view path) {
  for (const Change& change : kChanges) {
    if (!is_between(path, change.prefix, change.suffix)) continue;
    if (!request.content_type.starts_with(kJsonType)) {
      return refuse(415, "the content type must be " + std::string(kJsonType));
    }
    path.remove_prefix(change.prefix.size());
    path.remove_suffix(change.suffix.size());
    const auto name = percent_decode(path);
    if (!name) return refuse(400, "the name is not percent-encoded");
    return change.respond(source, path, *name, request.body);
  }
  return refuse(405, "method POST is not allowed for '" + std::string(path) + "'");
}

}  // namespace

AdminResponse refuse(unsigned status, std::string_view what) {
  std::string text(what);
  text += "; this server has GET and HEAD of /";
  for (const Route& route : kRoutes) text.append(" ").append(route.path);
  text.append(" ").append(kJobsPrefix).append("NAME ");
  text.append(kJobsPrefix).append("NAME").append(kTraceSuffix).append(" ");
  text.append(kJobsPrefix).append("NAME").append(kSnapshotSuffix).append(", and POST of ");
  text.append(kJobsPrefix).append("NAME").append(kPrioritiesSuffix).append(", ");
  text.append(kJobsPrefix).append("NAME").append(kTraceSuffix).append(", ");
  text.append(kJobsPrefix).append("NAME").append(kSnapshotSuffix).append(" and ");
  text.append(kBoxesPrefix).append("NAME").append(kDrainSuffix).append("\n");
  return {status, kTextType, text};
}

AdminResponse answer(AdminSource& source, const AdminRequest& request) {
  const bool reads = request.method == "GET" || request.method == "HEAD";
  if (!reads && request.method != "POST") {
    return refuse(405, "method " + std::string(request.method) + " is not allowed");
  }
  if (reads && request.has_body) return refuse(400, "a GET must have no body");
  if (!request.target.starts_with('/')) return refuse(400, "the target is not a path");

  const std::string_view path = request.target.substr(0, request.target.find('?'));
  if (!reads) return change(source, request, path);
  if (path == "/") return {200, kHtmlType, std::string(kLivePage)};
  for (const Route& route : kRoutes) {
    if (path == route.path) return route.respond(source);
  }
  for (const JobPage& page : kJobPages) {
    if (!is_between(path, kJobsPrefix, page.suffix)) continue;
    const size_t name_bytes = path.size() - kJobsPrefix.size() - page.suffix.size();
    return page.respond(source, path.substr(kJobsPrefix.size(), name_bytes));
  }
  if (path.starts_with(kJobsPrefix)) return job(source, path.substr(kJobsPrefix.size()));
  return refuse(404, "no page '" + std::string(path) + "'");
}

}  // namespace pbox::admin
