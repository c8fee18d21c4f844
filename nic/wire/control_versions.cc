#include "nic/wire/control_versions.h"

#include <algorithm>

#include "base/check.h"

namespace pbox::wire {
namespace {

using Scope = AddedField::Scope;

// An entry stays as long as some peer may name it in `needs`: until its version is older than
// kControlProtocolVersionMin.
constexpr AddedField kAddedFields[] = {
    {"WorkerMessage.ask_report", 3, Scope::kReceiver,
     [](const proto::WorkerMessage& message) { return message.has_ask_report(); }},
    {"Optimizer.max_grad_norm", 3, Scope::kJob,
     [](const proto::WorkerMessage& message) {
       return message.join().optimizer().max_grad_norm() != 0;
     }},
    {"Optimizer.skip_nonfinite", 3, Scope::kJob,
     [](const proto::WorkerMessage& message) {
       return message.join().optimizer().skip_nonfinite();
     }},
    {"Join.guard", 3, Scope::kJob,
     [](const proto::WorkerMessage& message) { return message.join().guard() != 0; }},
    {"Join.guard_max_abs", 3, Scope::kJob,
     [](const proto::WorkerMessage& message) { return message.join().guard_max_abs() != 0; }},
    {"Join.collective", 3, Scope::kJob,
     [](const proto::WorkerMessage& message) { return message.join().collective(); }},
    {"Tensor.row_elements", 3, Scope::kJob,
     [](const proto::WorkerMessage& message) {
       const auto& tensors = message.join().tensors();
       return std::any_of(tensors.begin(), tensors.end(),
                          [](const proto::Tensor& tensor) { return tensor.row_elements() != 0; });
     }},
    {"Tensor.compression", 3, Scope::kJob,
     [](const proto::WorkerMessage& message) {
       const auto& tensors = message.join().tensors();
       return std::any_of(tensors.begin(), tensors.end(),
                          [](const proto::Tensor& tensor) { return tensor.compression() != 0; });
     }},
    {"Join.weighted", 3, Scope::kJob,
     [](const proto::WorkerMessage& message) { return message.join().weighted(); }},
    {"Join.min_world_size", 3, Scope::kJob,
     [](const proto::WorkerMessage& message) { return message.join().min_world_size() != 0; }},
    {"Tensor.sync", 3, Scope::kJob,
     [](const proto::WorkerMessage& message) {
       const auto& tensors = message.join().tensors();
       return std::any_of(tensors.begin(), tensors.end(),
                          [](const proto::Tensor& tensor) { return tensor.has_sync(); });
     }},
    {"Sync.staleness_min", 3, Scope::kJob,
     [](const proto::WorkerMessage& message) {
       return message.join().sync().staleness_min() != 0;
     }},
    {"Sync.by_gradient", 3, Scope::kJob,
     [](const proto::WorkerMessage& message) { return message.join().sync().by_gradient(); }},
    {"Sync.grace_ms", 3, Scope::kJob,
     [](const proto::WorkerMessage& message) { return message.join().sync().grace_ms() != 0; }},
    {"Sync.counts_late", 3, Scope::kJob,
     [](const proto::WorkerMessage& message) { return message.join().sync().counts_late(); }},
    {"Join.relaxed_model", 3, Scope::kJob,
     [](const proto::WorkerMessage& message) { return message.join().relaxed_model() != 0; }},
    {"WorkerMessage.set_sync", 3, Scope::kReceiver,
     [](const proto::WorkerMessage& message) { return message.has_set_sync(); }},
    {"Join.workers", 3, Scope::kReceiver,
     [](const proto::WorkerMessage& message) { return message.join().workers() != 0; }},
    {"Join.backup_has_clocks", 3, Scope::kReceiver,
     [](const proto::WorkerMessage& message) { return message.join().backup_has_clocks(); }},
    {"WorkerMessage.step_verdict", 3, Scope::kReceiver,
     [](const proto::WorkerMessage& message) { return message.has_step_verdict(); }},
    {"WorkerMessage.ask_step", 3, Scope::kReceiver,
     [](const proto::WorkerMessage& message) { return message.has_ask_step(); }},
    // Only jobs with max_grad_norm or skip_nonfinite have these.
    {"Join.verdict", 3},
    {"Join.filled_parts", 3},
    {"Session.gives_verdicts", 3},
    // Only jobs of collectives have these.
    {"WorkerMessage.slot_operation", 3},
    {"BoxMessage.ask_slot_operation", 3},
    // Only on connections with TLS, which no box of version 2 has.
    {"Session.suite", 3},
    {"BoxMessage.step_verdict", 3},
    // The answer to a request that only version 3 has.
    {"BoxMessage.sync_set", 3},
    // A box of version 2 continues with the models that the ranks have registered.
    {"PartState.syncs", 3},
    {"PartState.sync_by_tensor", 3},
    {"BoxMessage.step_taken", 3},
    // Only boxes that are ranks read it, and those need Join.workers.
    {"Session.workers", 3},
    // These are only shown to people.
    {"Leave.reason", 3},
    {"PeerLeft.reason", 3},
    {"WorkerMessage.needs", 3},
    {"WorkerMessage.newest_version", 3},
    // A box of version 2 may place a part on another such box, which then refuses the rank.
    {"AskPartMap.job_version", 3},
    // Only boxes with keys use these, and none of version 2 has keys.
    {"AskPartMap.rank", 3},
    // A box with an upper box that does not know it sends its sums there in one part.
    {"PartMap.pipelines", 3},
    {"AskDataAddresses.cut_off_job", 3},
    {"AskDataAddresses.cut_off_ranks", 3},
    {"DataAddresses.most_are_cut_off", 3},
    {"DataAddresses.oldest_version", 3},
    {"DataAddresses.newest_version", 3},
    // A box that does not know it does not answer it, and the worker uses its next port.
    {"QueuePairs.shared_memory", 3},
    // A box that does not know it moves no chunks between its pipelines.
    {"FinishedRounds.busy_ns_by_pipeline", 3},
    // The answer to a question that only version 3 has.
    {"BoxMessage.report", 3},
    {"BoxMessage.needs", 3},
};

// Returns the version that a question states; nullopt if its kind of message states none.
std::optional<uint32_t> version_in(const proto::WorkerMessage& message) {
  using proto::WorkerMessage;
  switch (message.kind_case()) {
    case WorkerMessage::kJoin: return message.join().protocol_version();
    case WorkerMessage::kAskPartMap: return message.ask_part_map().protocol_version();
    case WorkerMessage::kAskState: return message.ask_state().protocol_version();
    case WorkerMessage::kAskCut: return message.ask_cut().protocol_version();
    case WorkerMessage::kAskReport: return message.ask_report().protocol_version();
    case WorkerMessage::kAskStep: return message.ask_step().protocol_version();
    default: return std::nullopt;
  }
}

void set_version(proto::WorkerMessage& message, uint32_t version) {
  using proto::WorkerMessage;
  switch (message.kind_case()) {
    case WorkerMessage::kJoin: return message.mutable_join()->set_protocol_version(version);
    case WorkerMessage::kAskPartMap:
      return message.mutable_ask_part_map()->set_protocol_version(version);
    case WorkerMessage::kAskState:
      return message.mutable_ask_state()->set_protocol_version(version);
    case WorkerMessage::kAskCut: return message.mutable_ask_cut()->set_protocol_version(version);
    case WorkerMessage::kAskReport:
      return message.mutable_ask_report()->set_protocol_version(version);
    case WorkerMessage::kAskStep: return message.mutable_ask_step()->set_protocol_version(version);
    default: return;
  }
}

}  // namespace

std::optional<uint32_t> common_version(const VersionRange& one, const VersionRange& other) {
  const uint32_t newest = std::min(one.newest, other.newest);
  if (newest < std::max(one.oldest, other.oldest)) return std::nullopt;
  return newest;
}

std::string to_string(const VersionRange& range) {
  const std::string oldest = std::to_string(range.oldest);
  return range.oldest == range.newest ? oldest : oldest + " to " + std::to_string(range.newest);
}

AddedFields added_fields() {
  return kAddedFields;
}

std::vector<const AddedField*> used_fields(const proto::WorkerMessage& message, uint32_t version,
                                           AddedFields fields) {
  std::vector<const AddedField*> used;
  for (const AddedField& field : fields) {
    const bool matters = field.since > version && field.scope != Scope::kIgnorable;
    PBOX_CHECK(!matters || field.is_used != nullptr);
    if (matters && field.is_used(message)) used.push_back(&field);
  }
  return used;
}

uint32_t version_of_job(const proto::WorkerMessage& join, AddedFields fields) {
  uint32_t version = kControlProtocolVersionMin;
  for (const AddedField* field : used_fields(join, version, fields)) {
    if (field->scope == Scope::kJob) version = std::max(version, field->since);
  }
  return version;
}

void state_versions(proto::WorkerMessage& message, AddedFields fields) {
  message.set_newest_version(kControlProtocolVersion);
  message.clear_needs();
  uint32_t oldest = kControlProtocolVersionMin;
  for (const AddedField* field : used_fields(message, kControlProtocolVersionMin, fields)) {
    oldest = std::max(oldest, field->since);
    message.add_needs(field->name);
  }
  set_version(message, oldest);
}

std::optional<VersionRange> stated_versions(const proto::WorkerMessage& message) {
  const std::optional<uint32_t> oldest = version_in(message);
  if (!oldest) return std::nullopt;
  return VersionRange{*oldest, std::max(*oldest, message.newest_version())};
}

VersionRange stated_versions(const proto::DataAddresses& answer) {
  constexpr uint32_t kSilent = 2;  // a box of version 2 does not state its version
  if (answer.newest_version() == 0) return {kSilent, kSilent};
  return {answer.oldest_version(), answer.newest_version()};
}

const std::string* unknown_need(const google::protobuf::RepeatedPtrField<std::string>& needs,
                                AddedFields fields) {
  for (const std::string& need : needs) {
    const bool is_known = std::any_of(fields.begin(), fields.end(),
                                      [&](const AddedField& field) { return need == field.name; });
    if (!is_known) return &need;
  }
  return nullptr;
}

}  // namespace pbox::wire
