#include <nlohmann/json.hpp>

#include "appliance/admin/json_view.h"

namespace pbox::admin {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kTimeoutMaxS = 24 * 3600;

}  // namespace

Result<double> parse_snapshot_timeout(std::string_view body) {
  constexpr bool kThrows = false;
  const Json json = Json::parse(body, nullptr, kThrows);
  const bool is_named = json.is_object() && json.size() == 1 && json.contains("timeout_s");
  if (is_named && json["timeout_s"].is_number()) {
    const double seconds = json["timeout_s"].get<double>();
    if (seconds > 0 && seconds <= kTimeoutMaxS) return seconds;
  }
  return Error{ErrorCode::kInvalidArgument,
               "the body must be {\"timeout_s\": SECONDS}, with SECONDS more than 0 and at most "
               "86400"};
}

std::string snapshot_json(const control::SnapshotView& view) {
  return Json{{"job", view.job},
              {"state", view.state},
              {"number", view.number},
              {"steps", view.steps},
              {"attempts", view.attempts},
              {"chunks", view.chunks},
              {"chunks_copied", view.chunks_copied},
              {"parts", view.parts},
              {"parts_written", view.parts_written},
              {"bytes", view.bytes},
              {"error", view.error}}
             .dump() +
         "\n";
}

}  // namespace pbox::admin
