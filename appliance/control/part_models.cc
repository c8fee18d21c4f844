#include "appliance/control/part_models.h"

#include <algorithm>

#include "appliance/control/start_plan.h"
#include "nic/wire/chunk_layout.h"

namespace pbox::control {
namespace {

bool is_adaptive(const wire::SyncSpec& sync) {
  return sync.model == wire::SyncModel::kAdaptive;
}

}  // namespace

PartModels::PartModels(const JobSpec& spec) : spec_(spec) {
  begin(std::nullopt);
}

void PartModels::begin(const std::optional<SyncInForce>& handed_over) {
  in_force_ = handed_over ? *handed_over : registered_models(spec_);
  PBOX_CHECK(in_force_.by_tensor.size() == spec_.tensors.size());
  controller_ = make_controller();
}

// The controller's bounds include those of all adaptive tensors.
std::optional<SyncController> PartModels::make_controller() const {
  std::optional<wire::SyncSpec> bounds;
  for (const wire::SyncSpec& sync : in_force_.by_tensor) {
    if (!is_adaptive(sync)) continue;
    if (!bounds) bounds = sync;
    bounds->staleness = std::max(bounds->staleness, sync.staleness);
    bounds->staleness_min = std::min(bounds->staleness_min, sync.staleness_min);
    bounds->probability = std::min(bounds->probability, sync.probability);
  }
  if (!bounds) return std::nullopt;
  return SyncController(*bounds, uint64_t{spec_.world_size} * chunk_count(spec_));
}

Status PartModels::change(const SyncChange& change) {
  if (const Status applied = apply(change, spec_, in_force_); !applied) return applied;
  controller_ = make_controller();
  return ok_status();
}

bool PartModels::observe(const SyncCounts& counts, uint64_t now_ns) {
  return controller_ && controller_->observe(counts, now_ns);
}

std::vector<wire::SyncSpec> PartModels::rules() const {
  std::vector<wire::SyncSpec> rules;
  for (size_t index = 0; index < spec_.tensors.size(); ++index) {
    const uint64_t bytes = spec_.tensors[index].bytes();
    const wire::SyncSpec& model = in_force_.by_tensor[index];
    rules.resize(rules.size() + wire::chunk_count(bytes, spec_.chunk_bytes),
                 is_adaptive(model) ? controller_->rule_within(model) : model);
  }
  return rules;
}

const SyncDecision* PartModels::newest_decision() const {
  if (!controller_ || controller_->decisions().empty()) return nullptr;
  return &controller_->decisions().back();
}

std::optional<SyncControlView> PartModels::view(uint64_t now_ns) const {
  if (!controller_) return std::nullopt;
  const SyncController::Window& window = controller_->window();
  SyncControlView view{.part = spec_.part,
                       .rule = wire::sync_text(controller_->rule()),
                       .staleness = controller_->rule().staleness,
                       .probability = controller_->rule().probability,
                       .decisions = controller_->decisions_made(),
                       .waited_share = window.waited,
                       .delayed_share = window.delayed,
                       .lead_rounds = window.lead,
                       .newest = {}};
  for (const SyncDecision& decision : controller_->decisions()) {
    const uint64_t age_ns = now_ns - std::min(now_ns, decision.at_ns);
    view.newest.push_back(
        {static_cast<double>(age_ns) / 1e9, wire::sync_text(decision.rule), decision.why});
  }
  return view;
}

}  // namespace pbox::control
