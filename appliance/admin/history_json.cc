#include <cmath>
#include <nlohmann/json.hpp>

#include "appliance/admin/json_view.h"

namespace pbox::admin {
namespace {

using Json = nlohmann::ordered_json;

// Lists of thousands of numbers are sent, so the numbers are rounded to what a chart can show.
double rounded(double value, double unit) {
  return std::round(value / unit) * unit;
}
Json whole(double value) {
  return static_cast<uint64_t>(std::llround(value));
}

template <typename Point, typename Value>
Json list_of(const std::vector<Point>& points, Value value) {
  Json list = Json::array();
  for (const Point& point : points) list.push_back(value(point));
  return list;
}

Json event_object(const JobEvent& event) {
  return {{"age_seconds", rounded(event.age_s, 0.125)},
          {"event", event.name},
          {"severity", event.warns ? "warning" : "info"},
          {"text", event.text}};
}

Json history_object(const JobHistory& job) {
  const auto late_rank = [](const JobPoint& point) {
    return point.late_rank < 0 ? Json(nullptr) : Json(point.late_rank);
  };
  return {{"job", job.job},
          {"is_over", job.is_over},
          {"interval_seconds", History::kJobIntervalSeconds},
          {"chunk_rounds_per_second",
           list_of(job.points, [](const auto& point) { return whole(point.chunk_rounds_per_s); })},
          {"late_rank", list_of(job.points, late_rank)},
          {"late_seconds",
           list_of(job.points,
                   [](const auto& point) { return Json(rounded(point.late_s, 1.0 / 1024)); })},
          {"events", list_of(job.events, event_object)}};
}

}  // namespace

std::string history_json(const HistoryView& history) {
  const auto& points = history.points;
  const Json object = {
      {"interval_seconds", 1},
      {"received_bytes_per_second",
       list_of(points, [](const auto& point) { return whole(point.received_per_s); })},
      {"sent_bytes_per_second",
       list_of(points, [](const auto& point) { return whole(point.sent_per_s); })},
      {"chunk_rounds_per_second",
       list_of(points, [](const auto& point) { return whole(point.chunk_rounds_per_s); })},
      {"busiest_ratio",
       list_of(points, [](const auto& point) { return Json(rounded(point.busiest, 1.0 / 128)); })},
      {"jobs", list_of(history.jobs, history_object)}};
  // The default error handler throws on a byte that is not UTF-8.
  return object.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace pbox::admin
