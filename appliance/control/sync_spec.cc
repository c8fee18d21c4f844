#include "appliance/control/sync_spec.h"

#include <algorithm>

#include "appliance/control/field_text.h"
#include "appliance/control/table_spec.h"
#include "base/check.h"
#include "base/glob.h"
#include "nic/wire/sync_message.h"
#include "pipeline/sync/rules.h"

namespace pbox::control {
namespace {

using wire::Reads;
using wire::Release;
using wire::SyncModel;
using wire::SyncSpec;

bool reads_cached(const SyncSpec& spec) {
  return spec.reads == Reads::kCached;
}

std::string model_of(const SyncSpec& spec) {
  return std::string("sync.model ") + to_string(spec.model);
}

Status check_values(const proto::Sync& sync) {
  if (sync.model() >= wire::kSyncModelCount) {
    return invalid("sync.model " + std::to_string(sync.model()) +
                   " is unknown; 0 bsp, 1 asp, 2 ssp, 3 essp, 4 pssp, 5 dpssp, 6 drop, 7 adaptive");
  }
  if (sync.release() > static_cast<uint32_t>(Release::kLazy)) {
    return invalid("sync.release " + std::to_string(sync.release()) +
                   " is unknown; 0 soft, 1 lazy");
  }
  if (sync.reads() > static_cast<uint32_t>(Reads::kAnswered)) {
    return invalid("sync.reads " + std::to_string(sync.reads()) +
                   " is unknown; 0 fresh, 1 cached, 2 answered");
  }
  return ok_status();
}

Status check_fields_of_drop(const SyncSpec& spec) {
  if (spec.counts_late && spec.model != SyncModel::kDrop) {
    return invalid("sync.counts_late has no meaning with " + model_of(spec) +
                   "; leave it out, or use drop");
  }
  if (spec.grace_ms == 0) return ok_status();
  const std::string grace = "sync.grace_ms " + std::to_string(spec.grace_ms);
  if (spec.model != SyncModel::kDrop) {
    return invalid(grace + " has no meaning with " + model_of(spec) + "; leave it 0, or use drop");
  }
  if (spec.grace_ms > wire::kGraceMsMax && spec.grace_ms != wire::kGraceAuto) {
    return invalid(grace + " is out of range; at most " + std::to_string(wire::kGraceMsMax) +
                   " is allowed, or " + std::to_string(wire::kGraceAuto) + " for auto");
  }
  return ok_status();
}

// Checks each field by itself: whether the model uses it, and its range.
Status check_fields(const SyncSpec& spec, uint32_t world_size) {
  const std::string model = model_of(spec);
  const std::string staleness = "sync.staleness " + std::to_string(spec.staleness);
  if (!wire::has_staleness(spec.model) && spec.staleness != 0) {
    return invalid(staleness + " has no meaning with " + model +
                   "; leave it 0, or use ssp, essp, pssp or dpssp");
  }
  if (spec.staleness > wire::kStalenessMax) {
    return invalid(staleness + " is out of range; at most " + std::to_string(wire::kStalenessMax) +
                   " is allowed; asp has no bound");
  }
  const std::string probability = "sync.probability " + number(spec.probability);
  if (!wire::has_probability(spec.model) && spec.probability != 1) {
    return invalid(probability + " has no meaning with " + model +
                   "; leave it 1, or use pssp or dpssp");
  }
  if (!(spec.probability > 0 && spec.probability <= 1)) {
    return invalid(probability + " must be above 0 and at most 1; to never wait, use asp");
  }
  const bool is_adaptive = spec.model == SyncModel::kAdaptive;
  if ((is_adaptive && spec.staleness_min > spec.staleness) ||
      (!is_adaptive && spec.staleness_min != 0)) {
    return invalid("sync.staleness_min " + std::to_string(spec.staleness_min) +
                   (is_adaptive
                        ? " is above " + staleness +
                              "; give the least first, as in "
                              "adaptive:1-8"
                        : " has no meaning with " + model + "; leave it 0, or use adaptive"));
  }
  if (spec.by_gradient && spec.model != SyncModel::kDpssp) {
    return invalid("sync.by_gradient has no meaning with " + model +
                   "; leave it out, or use dpssp");
  }
  const bool parks =
      spec.model == SyncModel::kSsp || (wire::has_probability(spec.model) && !is_adaptive);
  if (spec.release == Release::kLazy && !parks) {
    return invalid("sync.release lazy has no meaning with " + model +
                   ", because no fresh read waits there; leave it soft, or use ssp, pssp or dpssp");
  }
  if (spec.release == Release::kLazy && spec.reads != Reads::kFresh) {
    return invalid("sync.release lazy has no meaning with sync.reads " +
                   std::string(to_string(spec.reads)) +
                   ", because such reads wait for a clock; leave it soft, or read fresh");
  }
  const bool may_cache = spec.model == SyncModel::kSsp || spec.model == SyncModel::kEssp;
  if (spec.reads != Reads::kFresh && !may_cache) {
    return invalid("sync.reads " + std::string(to_string(spec.reads)) +
                   " is possible only with ssp and essp, not with " + model + "; read fresh");
  }
  const std::string quorum = "sync.quorum " + std::to_string(spec.quorum);
  if (spec.model != SyncModel::kDrop && spec.quorum != 0) {
    return invalid(quorum + " has no meaning with " + model + "; leave it 0, or use drop");
  }
  if (spec.model == SyncModel::kDrop && (spec.quorum == 0 || spec.quorum > world_size)) {
    return invalid(quorum + " is out of range; model drop takes 1 to world_size " +
                   std::to_string(world_size) + " workers");
  }
  return check_fields_of_drop(spec);
}

// A worker with cached reads applies its own updates to its copies, so it must be able to compute
// the optimizer's step. libpbox asks for answered reads where it cannot.
Status check_replay(const SyncSpec& sync, const JobSpec& spec) {
  if (!reads_cached(sync)) return ok_status();
  const std::string why = ", because workers apply their own updates to the copies that they read";
  const std::string remedy = " sync.reads 2 (answered), as libpbox of this release does by itself";
  if (spec.optimizer.kind != optimizer::OptimizerKind::kSgd) {
    return invalid(model_of(sync) + " with cached reads needs optimizer.kind 1 (SGD)" + why +
                   "; use it, or" + remedy);
  }
  if (const TensorSpec* table = first_table(spec)) {
    return invalid(model_of(sync) + " with cached reads cannot have tables" + why + "; tensor '" +
                   table->name + "' has row_elements " + std::to_string(table->row_elements) +
                   ": use" + remedy);
  }
  const auto decays =
      std::find_if(spec.tensors.begin(), spec.tensors.end(),
                   [](const TensorSpec& tensor) { return tensor.weight_decay != 0; });
  if (spec.optimizer.weight_decay != 0 || decays != spec.tensors.end()) {
    const bool is_tensors = decays != spec.tensors.end();
    return invalid(model_of(sync) + " with cached reads needs weight_decay 0" + why + "; " +
                   (is_tensors
                        ? "tensor '" + decays->name + "' has " + number(decays->weight_decay)
                        : "optimizer.weight_decay is " + number(spec.optimizer.weight_decay)) +
                   ": set it to 0, or use" + remedy);
  }
  return ok_status();
}

// Checks what a model other than BSP requires of the rest of the job.
Status check_job(const proto::Join& join, const JobSpec& spec) {
  const std::string model = std::string("sync.model ") + to_string(spec.relaxed_model);
  if (spec.mode != pipeline::Mode::kOptimize) {
    const bool drops = spec.relaxed_model == SyncModel::kDrop;
    return invalid(
        model + " needs mode optimize: " +
        (drops
             ? "otherwise a rank whose rounds were closed without it could not learn what it missed"
             : "the box must hold the weights to which pushes are applied") +
        "; set mode optimize, or use bsp");
  }
  if (spec.recovery != Recovery::kNone) {
    return invalid(
        model +
        " needs recovery none: ranks' copies of the weights lack other ranks' pushes, so "
        "only its box, or with model drop its replica, has what the job can go on from; "
        "set recovery none");
  }
  if (join.rejoins() && wire::keeps_copies(spec.sync)) {
    return invalid(model +
                   " with cached reads cannot have rejoin: a new process has no copies that it "
                   "could read; start all ranks again, without rejoin, or use fresh reads");
  }
  return check_replay(spec.sync, spec);
}

Result<SyncSpec> parse(const proto::Sync& message, uint32_t world_size) {
  if (const Status status = check_values(message); !status) return status.error();
  SyncSpec sync;
  sync.model = static_cast<SyncModel>(message.model());
  sync.staleness = message.staleness();
  sync.release = static_cast<Release>(message.release());
  sync.reads = static_cast<Reads>(message.reads());
  sync.quorum = message.quorum();
  sync.staleness_min = message.staleness_min();
  sync.by_gradient = message.by_gradient();
  sync.grace_ms = message.grace_ms();
  sync.counts_late = message.counts_late();
  const bool is_set = message.probability() != 0 || wire::has_probability(sync.model);
  sync.probability = is_set ? message.probability() : 1;
  if (wire::keeps_copies(sync)) sync.reads = Reads::kCached;
  if (const Status status = check_fields(sync, world_size); !status) return status.error();
  return sync;
}

std::string title_of(const TensorSpec& tensor) {
  return "tensor " + in_quotes(tensor.name);
}

// Checks that a tensor's own model can be combined with that of the job.
Status check_beside(const SyncSpec& job, const TensorSpec& tensor) {
  if (tensor.sync == job) return ok_status();
  const std::string what = title_of(tensor) + " has sync " + wire::sync_text(tensor.sync) +
                           ", and the job " + wire::sync_text(job) + ": ";
  if (job.model == SyncModel::kDrop || tensor.sync.model == SyncModel::kDrop) {
    return invalid(what +
                   "with drop a rank that falls behind skips rounds of all tensors; give all "
                   "tensors the job's model, or none of them drop");
  }
  if (reads_cached(job) || reads_cached(tensor.sync)) {
    return invalid(what +
                   "with cached reads a rank has one copy of the whole model, of one staleness; "
                   "give all tensors the job's model, or let all of them read fresh");
  }
  return ok_status();
}

Status parse_tensors(const proto::Join& join, JobSpec& spec) {
  PBOX_CHECK(static_cast<size_t>(join.tensors_size()) == spec.tensors.size());
  for (size_t index = 0; index < spec.tensors.size(); ++index) {
    TensorSpec& tensor = spec.tensors[index];
    const proto::Tensor& message = join.tensors(static_cast<int>(index));
    tensor.sync = spec.sync;
    if (!message.has_sync()) continue;
    const auto sync = parse(message.sync(), spec.world_size);
    if (!sync) return invalid(title_of(tensor) + ": " + sync.error().message);
    tensor.sync = *sync;
    if (const Status status = check_beside(spec.sync, tensor); !status) return status;
  }
  return ok_status();
}

// Returns why one model cannot follow the other while the job runs, and what to do.
std::string obstacle(const SyncSpec& former, const SyncSpec& next) {
  if (reads_cached(former) || reads_cached(next)) {
    return "the ranks make their copies of the model for cached reads, and for one staleness, when "
           "they join; start all ranks again with it";
  }
  if (former.model == SyncModel::kDrop || next.model == SyncModel::kDrop) {
    return "only with drop do ranks skip rounds; start all ranks again with the other model";
  }
  const bool had_rounds = !wire::applies_on_arrival(former.model);
  return std::string("bsp sums a round before it steps the weights, and ") +
         to_string(had_rounds ? next.model : former.model) +
         " has no memory for sums; start all ranks again with " + to_string(next.model) +
         (had_rounds ? "" : ", or set ssp:0, which bounds staleness as bsp does");
}

}  // namespace

const char* to_string(SyncModel model) {
  PBOX_DCHECK(static_cast<size_t>(model) < wire::kSyncModelCount);
  return wire::kSyncModelNames[static_cast<size_t>(model)];
}

const char* to_string(Release release) {
  return release == Release::kLazy ? "lazy" : "soft";
}

const char* to_string(Reads reads) {
  constexpr const char* kNames[] = {"fresh", "cached", "answered"};
  PBOX_DCHECK(static_cast<size_t>(reads) < std::size(kNames));
  return kNames[static_cast<size_t>(reads)];
}

bool is_relaxed(const proto::Join& join) {
  const auto is_other = [](const proto::Tensor& tensor) { return tensor.sync().model() != 0; };
  return join.sync().model() != 0 || join.relaxed_model() != 0 ||
         std::any_of(join.tensors().begin(), join.tensors().end(), is_other);
}

Status parse_sync(const proto::Join& join, JobSpec& spec) {
  const auto sync = parse(join.sync(), spec.world_size);
  if (!sync) return sync.error();
  spec.sync = *sync;
  if (const Status status = parse_tensors(join, spec); !status) return status;
  if (join.relaxed_model() >= wire::kSyncModelCount) {
    return invalid("relaxed_model " + std::to_string(join.relaxed_model()) +
                   " is unknown; it is the sync.model of a tensor, or 0");
  }
  spec.relaxed_model = spec.sync.model != SyncModel::kBsp
                           ? spec.sync.model
                           : static_cast<SyncModel>(join.relaxed_model());
  for (const TensorSpec& tensor : spec.tensors) {
    if (!spec.is_relaxed()) spec.relaxed_model = tensor.sync.model;
  }
  return spec.is_relaxed() ? check_job(join, spec) : ok_status();
}

SyncInForce registered_models(const JobSpec& spec) {
  SyncInForce models{.job = spec.sync, .by_tensor = {}};
  for (const TensorSpec& tensor : spec.tensors) models.by_tensor.push_back(tensor.sync);
  return models;
}

bool may_follow(const SyncInForce& former, const SyncInForce& next) {
  return std::equal(former.by_tensor.begin(), former.by_tensor.end(), next.by_tensor.begin(),
                    next.by_tensor.end(), sync::may_follow);
}

void write_models(const SyncInForce& models, proto::PartState& message) {
  std::vector<SyncSpec> distinct{models.job};
  for (const SyncSpec& sync : models.by_tensor) {
    const auto found = std::find(distinct.begin(), distinct.end(), sync);
    message.add_sync_by_tensor(static_cast<uint32_t>(found - distinct.begin()));
    if (found == distinct.end()) distinct.push_back(sync);
  }
  for (const SyncSpec& sync : distinct) *message.add_syncs() = wire::sync_message(sync);
}

Result<SyncInForce> read_models(const proto::PartState& message) {
  std::vector<SyncSpec> distinct;
  for (const proto::Sync& one : message.syncs()) {
    const auto sync = parse(one, limits::kWorkersPerJobMax);
    if (!sync) return Error{ErrorCode::kMismatch, sync.error().message};
    distinct.push_back(*sync);
  }
  SyncInForce models;
  if (!distinct.empty()) models.job = distinct.front();
  for (const uint32_t index : message.sync_by_tensor()) {
    if (index >= distinct.size()) {
      return Error{ErrorCode::kMismatch, "a tensor has model " + std::to_string(index) + " of " +
                                             std::to_string(distinct.size())};
    }
    models.by_tensor.push_back(distinct[index]);
  }
  return models;
}

bool SyncChange::names(const TensorSpec& tensor) const {
  return tensors.empty() || matches_glob(tensors, tensor.name);
}

Result<SyncChange> parse_change(const proto::SetSync& request) {
  // The quorum is checked against the job's ranks when the change is applied.
  auto sync = parse(request.sync(), limits::kWorkersPerJobMax);
  if (!sync) return sync.error();
  return SyncChange{request.tensors(), *sync};
}

Status apply(const SyncChange& change, const JobSpec& spec, SyncInForce& models) {
  if (const Status status = check_fields(change.sync, spec.world_size); !status) return status;
  if (!change.tensors.empty() && change.sync.grace_ms != models.job.grace_ms) {
    return invalid("sync " + wire::sync_text(change.sync) + " for tensors '" + change.tensors +
                   "' has another grace than the job, which has " + wire::sync_text(models.job) +
                   "; the grace applies to all tensors: name no tensors, or keep the job's grace");
  }
  SyncInForce changed = models;
  if (change.tensors.empty()) changed.job = change.sync;
  for (size_t index = 0; index < spec.tensors.size(); ++index) {
    if (!change.names(spec.tensors[index])) continue;
    SyncSpec& sync = changed.by_tensor[index];
    if (!sync::may_follow(sync, change.sync)) {
      return invalid(title_of(spec.tensors[index]) + " of " + spec.title() + " has sync " +
                     wire::sync_text(sync) + ", which cannot become " +
                     wire::sync_text(change.sync) +
                     " while the job runs: " + obstacle(sync, change.sync));
    }
    sync = change.sync;
  }
  models = std::move(changed);
  return ok_status();
}

std::optional<std::string> sync_difference(const SyncSpec& job, const SyncSpec& worker) {
  const auto differs = [](const char* field, const std::string& jobs, const std::string& workers) {
    return std::string("sync.") + field + ": " + workers + ", but the job has " + jobs;
  };
  if (job.model != worker.model) {
    return differs("model", to_string(job.model), to_string(worker.model));
  }
  const struct {
    const char* name;
    std::string job, worker;
  } fields[] = {
      {"staleness", std::to_string(job.staleness), std::to_string(worker.staleness)},
      {"probability", number(job.probability), number(worker.probability)},
      {"release", to_string(job.release), to_string(worker.release)},
      {"reads", to_string(job.reads), to_string(worker.reads)},
      {"quorum", std::to_string(job.quorum), std::to_string(worker.quorum)},
      {"staleness_min", std::to_string(job.staleness_min), std::to_string(worker.staleness_min)},
      {"by_gradient", std::to_string(job.by_gradient), std::to_string(worker.by_gradient)},
      {"grace_ms", std::to_string(job.grace_ms), std::to_string(worker.grace_ms)},
      {"counts_late", std::to_string(job.counts_late), std::to_string(worker.counts_late)},
  };
  for (const auto& field : fields) {
    if (field.job != field.worker) return differs(field.name, field.job, field.worker);
  }
  return std::nullopt;
}

}  // namespace pbox::control
