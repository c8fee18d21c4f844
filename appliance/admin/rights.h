// The paths of the server, and who may use each: one table. Pure.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "nic/tls/identity.h"

namespace pbox::admin {

// A client of the server.
struct Principal {
  std::string name;          // "uid 1000", "pbox://rack/operator"; over TCP without TLS its address
  std::string address = {};  // "127.0.0.1:40000"; empty: a UNIX socket
  std::optional<tls::Role> role;  // gives the client its rights; unset: it may do nothing
  std::string remedy = {};        // without a role: how to get one
};

enum class Page : uint8_t {
  kLive,
  kMetrics,
  kHealth,
  kReadiness,
  kBox,
  kBoxes,
  kHistory,
  kJobs,
  kRebalancing,
  kRecorder,
  kStragglers,
  kTrace,
  kSnapshot,
  kJob,
  kSetPriorities,
  kSetSync,
  kBeginTrace,
  kBeginSnapshot,
  kSetDuty
};

struct PathRights {
  Page page;
  const char* method;                    // "GET", which stands for HEAD too, or "POST"
  const char* path;                      // NAME stands for a job or box, percent-encoded
  bool box, tenant, operating, viewing;  // by tls::Role
};

// Returns the table. If several rows match a path, the first one counts.
std::span<const PathRights> path_rights();

struct FoundPath {
  const PathRights* row;
  std::string_view name;  // as it was sent in place of NAME; empty if the row has none
};
// `path` has no query. Returns nullopt if there is no such page, or not for this method.
std::optional<FoundPath> find_path(std::string_view method, std::string_view path);

// Returns an error that names the client, the path and the remedy if the client may not use it.
Status authorise(const Principal& client, const PathRights& row);

}  // namespace pbox::admin
