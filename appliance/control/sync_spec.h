// The consistency models of a job's tensors: as its workers request them, parsed from JOIN, and as
// they change while the job runs. Combinations that have no meaning are refused. All functions are
// pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "appliance/control/job_spec.h"

namespace pbox::control {

// Returns "bsp", "asp", ...
const char* to_string(wire::SyncModel model);
const char* to_string(wire::Release release);
const char* to_string(wire::Reads reads);

// Returns whether some tensor of the job has a model other than BSP.
bool is_relaxed(const proto::Join& join);

// Sets the models of the job and of each tensor. `spec` has the other settings of the job. The
// error names the field, its value and the remedy. Fills in what a model implies: ESSP reads cached
// data, and an unset probability is 1.
Status parse_sync(const proto::Join& join, JobSpec& spec);

// The models that are in force in a part.
struct SyncInForce {
  wire::SyncSpec job;                     // for tensors that have no model of their own
  std::vector<wire::SyncSpec> by_tensor;  // each tensor's

  bool operator==(const SyncInForce&) const = default;
};

// Returns the models with which the job was registered.
SyncInForce registered_models(const JobSpec& spec);
// Returns whether a part can change from the models `former` to `next` (sync::may_follow).
bool may_follow(const SyncInForce& former, const SyncInForce& next);
// Writes the models for another box, and reads them. kMismatch: some value is invalid.
void write_models(const SyncInForce& models, proto::PartState& message);
Result<SyncInForce> read_models(const proto::PartState& message);

// A change of models: the tensors whose names match `tensors` get the model `sync`. If `tensors` is
// empty, all tensors and the job get it.
struct SyncChange {
  std::string tensors;
  wire::SyncSpec sync;

  bool names(const TensorSpec& tensor) const;
};

// Reads a change that a worker asks for.
Result<SyncChange> parse_change(const proto::SetSync& request);
// Applies the change. A change that is not possible while the job runs changes nothing; the error
// names the tensor, both models and the remedy.
Status apply(const SyncChange& change, const JobSpec& spec, SyncInForce& models);

// Like first_difference(), for the consistency model.
std::optional<std::string> sync_difference(const wire::SyncSpec& job, const wire::SyncSpec& worker);

}  // namespace pbox::control
