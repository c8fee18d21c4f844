#include "appliance/control/sync_spec.h"

#include <algorithm>

#include "appliance/control/field_text.h"
#include "appliance/control/table_spec.h"
#include "base/check.h"

namespace pbox::control {
namespace {

using wire::Reads;
using wire::Release;
using wire::SyncModel;
using wire::SyncSpec;

Error invalid(const std::string& message) {
  return {ErrorCode::kInvalidArgument, message};
}

std::string model_of(const SyncSpec& spec) {
  return std::string("sync.model ") + to_string(spec.model);
}

bool has_staleness(SyncModel model) {
  return model == SyncModel::kSsp || model == SyncModel::kEssp || model == SyncModel::kPssp ||
         model == SyncModel::kDpssp;
}

bool has_probability(SyncModel model) {
  return model == SyncModel::kPssp || model == SyncModel::kDpssp;
}

Status check_values(const proto::Sync& sync) {
  if (sync.model() >= wire::kSyncModelCount) {
    return invalid("sync.model " + std::to_string(sync.model()) +
                   " is unknown; 0 bsp, 1 asp, 2 ssp, 3 essp, 4 pssp, 5 dpssp, 6 drop");
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

// Checks each field by itself: whether the model uses it, and its range.
Status check_fields(const SyncSpec& spec, uint32_t world_size) {
  const std::string model = model_of(spec);
  const std::string staleness = "sync.staleness " + std::to_string(spec.staleness);
  if (!has_staleness(spec.model) && spec.staleness != 0) {
    return invalid(staleness + " has no meaning with " + model +
                   "; leave it 0, or use ssp, essp, pssp or dpssp");
  }
  if (spec.staleness > wire::kStalenessMax) {
    return invalid(staleness + " is out of range; at most " + std::to_string(wire::kStalenessMax) +
                   ", or asp for no bound");
  }
  const std::string probability = "sync.probability " + number(spec.probability);
  if (!has_probability(spec.model) && spec.probability != 1) {
    return invalid(probability + " has no meaning with " + model +
                   "; leave it 1, or use pssp or dpssp");
  }
  if (!(spec.probability > 0 && spec.probability <= 1)) {
    return invalid(probability + " must be above 0 and at most 1; to never wait, use asp");
  }
  const bool parks = spec.model == SyncModel::kSsp || has_probability(spec.model);
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
  return ok_status();
}

// A worker with cached reads applies its own updates to its copies, so it must be able to compute
// the optimizer's step. libpbox asks for answered reads where it cannot.
Status check_replay(const SyncSpec& sync, const JobSpec& spec) {
  if (sync.reads != Reads::kCached) return ok_status();
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
Status check_job(const SyncSpec& sync, const proto::Join& join, const JobSpec& spec) {
  const std::string model = model_of(sync);
  if (spec.mode != pipeline::Mode::kOptimize) {
    const bool drops = sync.model == SyncModel::kDrop;
    return invalid(
        model + " needs mode optimize: " +
        (drops
             ? "otherwise a rank whose rounds were closed without it could not learn what it missed"
             : "the box must hold the weights to which pushes are applied") +
        "; set mode optimize, or use bsp");
  }
  if (spec.recovery != Recovery::kNone) {
    return invalid(model +
                   " needs recovery none: its parts can move between running boxes, but only the "
                   "box has their state, so the job ends if that box is lost; set recovery none");
  }
  if (join.rejoins()) {
    return invalid("rejoin is possible only with sync.model bsp, not with " +
                   std::string(to_string(sync.model)) +
                   ": the other ranks have continued from updates that a lost rank has not seen; "
                   "start all ranks again, without rejoin");
  }
  return check_replay(sync, spec);
}

}  // namespace

const char* to_string(SyncModel model) {
  constexpr const char* kNames[] = {"bsp", "asp", "ssp", "essp", "pssp", "dpssp", "drop"};
  static_assert(std::size(kNames) == wire::kSyncModelCount);
  PBOX_DCHECK(static_cast<size_t>(model) < std::size(kNames));
  return kNames[static_cast<size_t>(model)];
}

const char* to_string(Release release) {
  return release == Release::kLazy ? "lazy" : "soft";
}

const char* to_string(Reads reads) {
  constexpr const char* kNames[] = {"fresh", "cached", "answered"};
  PBOX_DCHECK(static_cast<size_t>(reads) < std::size(kNames));
  return kNames[static_cast<size_t>(reads)];
}

Result<SyncSpec> parse_sync(const proto::Join& join, const JobSpec& spec) {
  const proto::Sync& message = join.sync();
  if (const Status status = check_values(message); !status) return status.error();
  SyncSpec sync;
  sync.model = static_cast<SyncModel>(message.model());
  sync.staleness = message.staleness();
  sync.release = static_cast<Release>(message.release());
  sync.reads = static_cast<Reads>(message.reads());
  sync.quorum = message.quorum();
  const bool is_set = message.probability() != 0 || has_probability(sync.model);
  sync.probability = is_set ? message.probability() : 1;
  if (wire::keeps_copies(sync)) sync.reads = Reads::kCached;
  if (const Status status = check_fields(sync, spec.world_size); !status) return status.error();
  if (sync.model == SyncModel::kBsp) return sync;
  if (const Status status = check_job(sync, join, spec); !status) return status.error();
  return sync;
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
  };
  for (const auto& field : fields) {
    if (field.job != field.worker) return differs(field.name, field.job, field.worker);
  }
  return std::nullopt;
}

}  // namespace pbox::control
