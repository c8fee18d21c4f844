#include "appliance/admin/json_view.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "nic/wire/sync.h"

namespace pbox::admin {
namespace {

using Json = nlohmann::ordered_json;

std::string to_text(const Json& json) {
  // The default error handler throws on a byte that is not UTF-8.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Json worker_object(const control::WorkerView& worker) {
  const bool heard = worker.last_packet_age_s >= 0;
  const auto& nonfinite = worker.newest_nonfinite;
  return {{"rank", worker.rank},
          {"peer", worker.peer},
          {"state", worker.state},
          {"bytes_received", worker.bytes_received},
          {"fragments_received", worker.fragments_received},
          {"duplicates", worker.duplicates},
          {"last_arrivals", worker.last_arrivals},
          {"last_packet_age_seconds", heard ? Json(worker.last_packet_age_s) : Json(nullptr)},
          {"dropped_fragments",
           worker.dropped_fragments ? Json(*worker.dropped_fragments) : Json(nullptr)},
          {"missed_rounds", worker.missed_rounds ? Json(*worker.missed_rounds) : Json(nullptr)},
          {"nonfinite_fragments", worker.nonfinite_fragments},
          {"nonfinite_tensor", nonfinite ? Json(nonfinite->place.tensor) : Json(nullptr)},
          {"nonfinite_round", nonfinite ? Json(nonfinite->place.round) : Json(nullptr)},
          {"nonfinite_age_seconds", nonfinite ? Json(nonfinite->age_s) : Json(nullptr)},
          {"gradient_norm",
           worker.gradient_squares ? Json(std::sqrt(*worker.gradient_squares)) : Json(nullptr)}};
}

Json sync_control_list(const control::JobView& job) {
  Json list = Json::array();
  for (const control::SyncControlView& part : job.sync.control) {
    Json newest = Json::array();
    for (const auto& decision : part.newest) {
      newest.push_back(
          {{"age_seconds", decision.age_s}, {"rule", decision.rule}, {"why", decision.why}});
    }
    list.push_back({{"part", part.part},
                    {"rule", part.rule},
                    {"decisions", part.decisions},
                    {"waited_share", part.waited_share},
                    {"delayed_share", part.delayed_share},
                    {"lead_rounds", part.lead_rounds},
                    {"newest", std::move(newest)}});
  }
  return list;
}

Json grace_value(uint32_t grace_ms) {
  return grace_ms == wire::kGraceAuto ? Json("auto") : Json(grace_ms);
}

Json sync_object(const control::JobView& job) {
  Json object = {{"text", job.sync.text},
                 {"by_tensor", job.sync.by_tensor},
                 {"model", job.sync.model},
                 {"staleness", job.sync.staleness},
                 {"probability", job.sync.probability},
                 {"release", job.sync.release},
                 {"reads", job.sync.reads},
                 {"quorum", job.sync.quorum},
                 {"grace_ms", grace_value(job.sync.grace_ms)},
                 {"late_pushes", job.sync.counts_late ? "next" : "drop"},
                 {"control", sync_control_list(job)},
                 {"reads_by_rounds_behind", job.reads_by_rounds_behind}};
  if (job.pulls) {
    object["pulls"] = job.pulls->pulls;
    object["pulls_delayed"] = job.pulls->delayed;
    object["parked_seconds"] = job.pulls->parked_s;
    object["lead_rounds"] = job.pulls->lead_rounds;
  }
  if (job.grace) {
    // null: the rounds of some shard wait for all ranks
    object["grace_seconds"] = job.grace->is_unbounded ? Json(nullptr) : Json(job.grace->grace_s);
    object["rounds_cut"] = job.grace->rounds_cut;
  }
  return object;
}

Json upstream_object(const control::JobView& job) {
  if (!job.upstream) return nullptr;
  const control::RelayView& relay = *job.upstream;
  return {{"box", relay.box},
          {"rank", relay.rank},
          {"world_size", relay.racks},
          {"joined", relay.is_joined},
          {"workers", relay.workers},
          {"chunks_relayed", relay.chunks_relayed},
          {"chunks_in_flight", relay.chunks_in_flight}};
}

Json backup_object(const control::JobView& job) {
  if (!job.backup) return nullptr;
  const control::BackupView& backup = *job.backup;
  return {{"boxes", backup.boxes},
          {"parts_without", backup.parts_without},
          {"chunks_copied", backup.chunks_copied},
          {"chunks_in_flight", backup.chunks_in_flight}};
}

Json job_object(const control::JobView& job) {
  Json workers = Json::array();
  for (const control::WorkerView& worker : job.workers) workers.push_back(worker_object(worker));
  return {{"name", job.name},
          {"part_count", job.part_count},
          {"parts", job.parts},
          {"state", job.state},
          {"mode", job.mode},
          {"upstream", upstream_object(job)},
          {"backup", backup_object(job)},
          {"is_backup", job.is_backup},
          {"reduction", job.reduction},
          {"optimizer", job.optimizer},
          {"priority_policy", job.priority_policy},
          {"priority_source", job.priority_source},
          {"delivery", job.delivery},
          {"numerics", job.numerics},
          {"guard", job.guard},
          {"guard_max_abs", job.guard_max_abs},
          {"world_size", job.world_size},
          {"min_world_size", job.min_world_size},
          {"tensor_count", job.tensor_count},
          {"element_count", job.element_count},
          {"chunk_count", job.chunk_count},
          {"chunk_bytes", job.chunk_bytes},
          {"fragment_bytes", job.fragment_bytes},
          {"memory_bytes", job.memory_bytes},
          {"chunk_rounds", job.chunk_rounds},
          {"age_seconds", job.age_s},
          {"sync", sync_object(job)},
          {"workers", std::move(workers)}};
}

// Makes {"pbox_rx_packets_total": 7, "pbox_rejected_packets_total": {"tag": 1, ...}}.
template <typename Counter>
void add_counters(Json& object, std::span<const CounterRow> table,
                  const CounterSet<Counter>* counters) {
  if (counters == nullptr) return;
  for (size_t row_index = 0; row_index < table.size(); ++row_index) {
    const CounterRow& row = table[row_index];
    const uint64_t value = counters->get(static_cast<Counter>(row_index));
    if (row.label[0] == '\0') {
      // Keeps whole numbers whole: a double cannot hold the largest exactly.
      const double amount = exported_value(row, value);
      object[row.metric] = amount == static_cast<double>(value) ? Json(value) : Json(amount);
    } else {
      object[row.metric][row.value] = value;
    }
  }
}

Json pipeline_object(const PipelineView& view) {
  Json counters = Json::object();
  add_counters(counters, pipeline::kCounterTable, view.counters);
  add_counters(counters, nic::kPortCounterTable, view.port_counters);
  return {{"index", view.index},
          {"cpu", view.cpu < 0 ? Json(nullptr) : Json(view.cpu)},
          {"node", view.node < 0 ? Json(nullptr) : Json(view.node)},
          {"address", view.address},
          {"udp_port", view.udp_port},
          {"port", view.port},
          {"nic", view.nic},
          {"affinity", view.affinity},
          {"counters", std::move(counters)}};
}

}  // namespace

Result<wire::PriorityPolicy> parse_priority_policy(std::string_view body) {
  constexpr bool kThrows = false;
  const Json json = Json::parse(body, nullptr, kThrows);
  const bool is_named = json.is_object() && json.size() == 1 && json.contains("policy");
  for (size_t value = 0; is_named && value < std::size(wire::kPriorityPolicyNames); ++value) {
    if (json["policy"] == wire::kPriorityPolicyNames[value]) {
      return static_cast<wire::PriorityPolicy>(value);
    }
  }
  return Error{ErrorCode::kInvalidArgument,
               "the body must be {\"policy\": POLICY}, with POLICY \"explicit\", "
               "\"forward-order\" or \"fifo\""};
}

Result<control::SyncChange> parse_sync_change(std::string_view body) {
  constexpr bool kThrows = false;
  const Json json = Json::parse(body, nullptr, kThrows);
  const bool has_sync = json.is_object() && json.contains("sync") && json["sync"].is_string();
  const bool has_tensors = has_sync && json.contains("tensors");
  const auto* const tensors = has_tensors ? json["tensors"].get_ptr<const std::string*>() : nullptr;
  const bool names_tensors = tensors != nullptr && !tensors->empty();
  const bool is_sound =
      has_sync && json.size() == (has_tensors ? 2u : 1u) && has_tensors == names_tensors;
  if (!is_sound) {
    return Error{ErrorCode::kInvalidArgument,
                 "the body must be {\"sync\": MODEL}, with MODEL as in \"ssp:3\", and perhaps "
                 "\"tensors\": GLOB"};
  }
  const auto sync = wire::parse_sync_text(json["sync"].get<std::string>());
  if (!sync) return sync.error();
  return control::SyncChange{has_tensors ? json["tensors"].get<std::string>() : "", *sync};
}

Result<double> parse_trace_seconds(std::string_view body) {
  constexpr bool kThrows = false;
  const Json json = Json::parse(body, nullptr, kThrows);
  const bool is_named = json.is_object() && json.size() == 1 && json.contains("seconds");
  if (is_named && json["seconds"].is_number()) {
    const double seconds = json["seconds"].get<double>();
    if (seconds > 0 && seconds <= limits::kTraceSecondsMax) return seconds;
  }
  return Error{ErrorCode::kInvalidArgument,
               "the body must be {\"seconds\": SECONDS}, with SECONDS more than 0 and at most " +
                   std::to_string(limits::kTraceSecondsMax)};
}

Result<cluster::Duty> parse_duty(std::string_view body) {
  constexpr bool kThrows = false;
  const Json json = Json::parse(body, nullptr, kThrows);
  const auto is = [&json](const char* key, bool value) {
    return json.contains(key) && json[key] == Json(value);
  };
  const size_t fields = json.is_object() ? json.size() : 0;
  if (fields == 1 && is("draining", true)) return cluster::Duty::kDrains;
  if (fields == 1 && is("draining", false)) return cluster::Duty::kTakesParts;
  if (fields == 2 && is("draining", true) && is("standby", true)) return cluster::Duty::kStandby;
  return Error{ErrorCode::kInvalidArgument,
               "the body must be {\"draining\": true}, {\"draining\": true, \"standby\": true} or "
               "{\"draining\": false}"};
}

std::string not_ready_reason(const BoxView& box) {
  if (box.draining) return "draining: the box accepts no new job; use another box";
  if (!box.ready) return "not ready: not all pipelines run yet; ask again";
  return "";
}

std::string health_json(const BoxView& box) {
  return to_text({{"status", "ok"},
                  {"name", box.name},
                  {"version", box.version},
                  {"uptime_seconds", box.uptime_s},
                  {"insecure", box.insecure},
                  {"keys", box.has_keys},
                  {"draining", box.draining}});
}

std::string readiness_json(const BoxView& box) {
  const std::string reason = not_ready_reason(box);
  return to_text({{"ready", reason.empty()}, {"reason", reason}});
}

std::string box_json(const BoxView& box, const std::vector<PipelineView>& pipelines) {
  Json pipeline_list = Json::array();
  for (const PipelineView& view : pipelines) pipeline_list.push_back(pipeline_object(view));
  return to_text({{"name", box.name},
                  {"version", box.version},
                  {"ready", box.ready},
                  {"draining", box.draining},
                  {"insecure", box.insecure},
                  {"keys", box.has_keys},
                  {"uptime_seconds", box.uptime_s},
                  {"job_memory_bytes", box.job_memory_bytes},
                  {"job_memory_limit_bytes", box.job_memory_limit_bytes},
                  {"joins_refused", box.joins_refused},
                  {"workers_lost", box.workers_lost},
                  {"workers_back", box.workers_back},
                  {"workers_excluded", box.workers_excluded},
                  {"jobs_recovered", box.jobs_recovered},
                  {"optimizer_restarts", box.optimizer_restarts},
                  {"backups_lost", box.backups_lost},
                  {"snapshots_taken", box.snapshots_taken},
                  {"snapshots_failed", box.snapshots_failed},
                  {"ports_given_up", box.ports_given_up},
                  {"jobs_failed", box.jobs_failed},
                  {"jobs_finished", box.jobs_finished},
                  {"links_down", box.links_down},
                  {"control_connections", box.control_connections},
                  {"handshakes_refused", box.handshakes_refused},
                  {"pipelines", std::move(pipeline_list)}});
}

std::string boxes_json(const ClusterView& cluster) {
  Json boxes = Json::array();
  for (const cluster::BoxRecord& box : cluster.boxes) {
    const bool leads = cluster.leader && cluster.leader->name == box.name;
    const uint64_t capacity = box.capacity_bytes_per_s;
    const auto duty = cluster.duties.find(box.name);
    const bool has_duty = duty != cluster.duties.end();
    boxes.push_back({{"name", box.name},
                     {"leads", leads},
                     {"control", box.control},
                     {"data", box.data},
                     {"pipelines", box.data.size()},
                     {"capacity_bytes_per_second", capacity == 0 ? Json(nullptr) : Json(capacity)},
                     {"job_memory_bytes", box.job_memory_bytes},
                     {"parts", has_duty ? duty->second.parts : 0},
                     {"draining", has_duty && duty->second.duty != cluster::Duty::kTakesParts},
                     {"standby", has_duty && duty->second.duty == cluster::Duty::kStandby},
                     {"drain_obstacle", has_duty ? duty->second.drain_obstacle : ""},
                     {"version", box.version},
                     {"protocol_version", box.protocol_version},
                     {"protocol_version_min", box.protocol_version_min},
                     {"incarnation", box.incarnation}});
  }
  const auto& leader = cluster.leader;
  return to_text(
      {{"cluster", cluster.name},
       {"store_up", cluster.store_up},
       {"store_error", cluster.store_error},
       {"leader", leader ? Json(leader->name) : Json(nullptr)},
       {"leader_since_unix_seconds", leader ? Json(leader->since_unix_s) : Json(nullptr)},
       {"boxes", std::move(boxes)}});
}

std::string trace_json(const control::TraceView& trace) {
  Json chunks = Json::array();
  for (const control::TracedChunk& chunk : trace.chunks) {
    chunks.push_back({{"part", chunk.part},
                      {"chunk", chunk.chunk},
                      {"pipeline", chunk.pipeline},
                      {"tensor", chunk.tensor},
                      {"priority", chunk.priority},
                      {"own_rounds", chunk.has_own_rounds},
                      {"sent_unasked", chunk.is_sent_unasked}});
  }
  const uint64_t recorded_ns = trace.ended_ns - trace.begun_ns;
  const Json object = {{"job", trace.job},
                       {"world_size", trace.world_size},
                       {"recorded_seconds", static_cast<double>(recorded_ns) / 1e9},
                       {"lost_events", trace.lost_events},
                       {"chunks", std::move(chunks)},
                       {"events", Json::array()}};
  std::string text = to_text(object);
  // A trace may have a quarter of a million events. As JSON objects they would take ten times the
  // memory, so they are written as text here.
  std::string events;
  for (const control::TraceView::Event& event : trace.events) {
    const pipeline::TraceEvent& at = event.event;
    events += events.empty() ? "[\n" : ",\n";
    events += '[' + std::to_string(at.at_ns - trace.begun_ns) + ',' +
              std::to_string(static_cast<unsigned>(at.kind)) + ',' + std::to_string(event.chunk) +
              ',' + std::to_string(at.round) + ',' + std::to_string(at.rank) + ']';
  }
  if (!events.empty()) text.replace(text.rfind("[]"), 2, events + "\n]");
  return text;
}

std::string jobs_json(const std::vector<control::JobView>& jobs) {
  Json list = Json::array();
  for (const control::JobView& job : jobs) list.push_back(job_object(job));
  Json object = Json::object();
  object["jobs"] = std::move(list);
  return to_text(object);
}

std::string job_json(const control::JobView& job) {
  return to_text(job_object(job));
}

}  // namespace pbox::admin
