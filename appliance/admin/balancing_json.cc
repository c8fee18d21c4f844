#include <nlohmann/json.hpp>

#include "appliance/admin/json_view.h"

namespace pbox::admin {
namespace {

using Json = nlohmann::ordered_json;

Json box_object(const cluster::BalanceView::Box& box) {
  return {{"name", box.name},
          {"state", box.state},
          {"parts", box.parts},
          {"busy_seconds", box.busy_seconds},
          {"bytes_per_second", box.bytes_per_second}};
}

Json job_object(const cluster::BalanceView& job) {
  Json boxes = Json::array();
  for (const auto& box : job.boxes) boxes.push_back(box_object(box));
  Json decisions = Json::array();
  for (const cluster::BalanceDecision& decision : job.decisions) {
    decisions.push_back({{"unix_seconds", decision.unix_s},
                         {"kind", placement::to_string(decision.kind)},
                         {"reason", decision.reason}});
  }
  return {{"name", job.job},
          {"state", job.state},
          {"waits_for", job.waits_for},
          {"iteration_seconds", job.iteration_seconds},
          {"observations", job.observations},
          {"parts_moved", job.parts_moved},
          {"last_gain", job.last_gain ? Json(*job.last_gain) : Json(nullptr)},
          {"boxes", std::move(boxes)},
          {"decisions", std::move(decisions)}};
}

Json list_of(const std::vector<cluster::BalanceView>& jobs) {
  Json list = Json::array();
  for (const cluster::BalanceView& job : jobs) list.push_back(job_object(job));
  return list;
}

Json scaling_object(const cluster::ScalingView& scaling) {
  Json decisions = Json::array();
  for (const cluster::ScaledDecision& made : scaling.decisions) {
    const placement::ScaleDecision& decision = made.decision;
    decisions.push_back({{"unix_seconds", made.unix_s},
                         {"kind", placement::to_string(decision.kind)},
                         {"box", decision.box.empty() ? Json(nullptr) : Json(decision.box)},
                         {"reason", decision.reason}});
  }
  return {{"enabled", scaling.enabled},
          {"pressure", scaling.pressure ? Json(*scaling.pressure) : Json(nullptr)},
          {"hook_failures", scaling.hook_failures},
          {"decisions", std::move(decisions)}};
}

}  // namespace

std::string balancing_json(const cluster::BalancingView& balancing, const std::string& leader) {
  Json counts = Json::object();
  for (size_t kind = 0; kind < balancing.decisions.size(); ++kind) {
    const char* name = placement::to_string(static_cast<placement::DecisionKind>(kind));
    counts[name] = balancing.decisions[kind];
  }
  const Json inside = {{"enabled", balancing.inside.enabled},
                       {"groups_moved", balancing.inside.groups_moved},
                       {"jobs", list_of(balancing.inside.jobs)}};
  const Json page = {{"enabled", balancing.enabled},
                     {"leads", balancing.leads},
                     {"leader", leader.empty() ? Json(nullptr) : Json(leader)},
                     {"parts_moved", balancing.parts_moved},
                     {"decisions", std::move(counts)},
                     {"jobs", list_of(balancing.jobs)},
                     {"scaling", scaling_object(balancing.scaling)},
                     {"inside", inside}};
  return page.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace pbox::admin
