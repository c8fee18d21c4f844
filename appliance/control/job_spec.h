// A job as its workers describe it: parsed from JOIN, checked against the box's limits and compared
// between ranks. All functions are pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "nic/wire/blocks.h"
#include "nic/wire/control.pb.h"
#include "nic/wire/control_versions.h"
#include "nic/wire/guard.h"
#include "nic/wire/schedule.h"
#include "nic/wire/sync.h"
#include "pipeline/job_shard.h"

namespace pbox::control {

struct JobLimits {
  uint32_t workers_max = limits::kWorkersPerJobMax;
  uint32_t chunks_max = limits::kChunksPerJobMax;
  uint32_t chunk_bytes_default = limits::kChunkBytesDefault;
};

struct TensorSpec {
  std::string name;
  uint64_t elements = 0;
  wire::Dtype dtype = wire::Dtype::kF32;
  int32_t priority = 0;
  float lr_scale = 1;
  float weight_decay = 0;
  wire::SyncSpec sync = {};  // as registered
  // Offset within the whole tensor, if other parts own its other pieces.
  uint64_t first_element = 0;
  uint32_t row_elements = 0;  // elements of a row, if the tensor is a table; else 0
  wire::Compression compression = wire::Compression::kNone;

  // The type of the values in its packets.
  wire::Dtype wire_dtype() const {
    return compression == wire::Compression::kNone ? dtype : wire::payload_dtype(compression);
  }
  // Its size in the ranks' memory.
  uint64_t bytes() const { return elements * wire::dtype_bytes(dtype); }
};

// The reaction of a running job to the loss of a rank. Values are stable: they cross the control
// connection.
enum class LostPolicy : uint8_t {
  kWait = 0,     // waits for the rank until the job's timeout, then fails
  kPartial = 1,  // waits for the rank until the job's timeout, then continues without it
  kAbort = 2,    // fails at once
};

// The reaction of a job to the loss of its box.
enum class Recovery : uint8_t {
  kCopy = 0,  // its workers keep what another box needs to continue
  kNone = 1,  // it fails
};

struct JobTimeouts {
  uint64_t join_ns = 0;         // for all ranks to join
  uint64_t lost_ns = 0;         // for a lost rank to come back
  uint32_t stated_lost_ms = 0;  // lost_ns in milliseconds if the ranks have stated it, else 0
};

struct JobSpec {
  std::string name;
  // Index of the part that has the tensors below; a part is joined, run and moved by itself.
  uint32_t part = 0;
  uint32_t parts = 1;
  uint32_t world_size = 0;
  uint32_t min_world_size = 0;  // elastic: ranks with which it begins, below world_size; else 0
  pipeline::Mode mode = pipeline::Mode::kAggregate;
  bool collective = false;  // mode aggregate: tensors are slots (nic/wire/collective.h)
  pipeline::Reduction reduction = pipeline::Reduction::kSum;
  bool weighted = false;  // reduction mean: pushes have weights (nic/wire/push_weight.h)
  optimizer::OptimizerSpec optimizer;
  LostPolicy on_worker_lost = LostPolicy::kWait;
  Recovery recovery = Recovery::kCopy;
  wire::SyncSpec sync;  // as registered; a tensor's own model takes precedence
  // A model other than BSP that some tensor of the job has, in whatever part; BSP if there is none.
  wire::SyncModel relaxed_model = wire::SyncModel::kBsp;
  wire::PriorityPolicy priority_policy = wire::PriorityPolicy::kExplicit;  // initial policy
  wire::Delivery delivery = wire::Delivery::kBroadcast;
  wire::Numerics numerics = wire::Numerics::kFast;
  uint32_t chunk_bytes = limits::kChunkBytesDefault;
  float max_grad_norm = 0;      // gradients are clipped to this norm; 0 if they are not clipped
  bool skip_nonfinite = false;  // a round with an infinity or a NaN changes nothing
  wire::GuardSpec guard;
  // If needs_verdicts(): the parts that have chunks, ascending.
  std::vector<uint32_t> filled_parts = {};
  std::string restore;   // snapshot to start from: "latest" or a number; empty if none
  bool relayed = false;  // its sums go to an upper box; set by the box, not by its ranks
  // Mode optimize: number of backup boxes that keep a copy of weights and state.
  uint32_t replicas = 0;
  bool is_backup = false;  // the job is a backup copy of another box's part; it never moves
  std::vector<TensorSpec> tensors;
  // Fields of the first rank's JOIN that only newer versions of the control protocol have.
  std::vector<const wire::AddedField*> added_fields = {};

  // Returns whether the job survives the loss of its box. A relayed job does not, because other
  // racks may have consumed results that this one has not. A relaxed job survives only by a backup
  // copy.
  bool survives_its_box() const {
    return (is_relaxed() ? replicas > 0 : recovery == Recovery::kCopy) && !relayed;
  }
  // Returns whether some tensor of the job has a consistency model other than BSP.
  bool is_relaxed() const { return relaxed_model != wire::SyncModel::kBsp; }
  // Returns whether some tensor's weights change with every push.
  bool applies_on_arrival() const;
  // Returns whether an excluded rank can never come back, because the box keeps no clock of it.
  bool excludes_for_good() const { return is_relaxed() && relaxed_model != wire::SyncModel::kDrop; }
  // Returns whether its parts can move from one running box to another. A relaxed job needs no
  // copies from the workers for that.
  bool may_move() const { return survives_its_box() || is_relaxed(); }
  // Returns whether ranks may join for the first time while the job runs.
  bool is_elastic() const { return min_world_size != 0; }
  bool rejects() const { return guard.policy == wire::Guard::kReject; }
  // Returns whether a round may be skipped, which is possible only in mode optimize.
  bool may_skip() const {
    return skip_nonfinite || (rejects() && mode == pipeline::Mode::kOptimize);
  }
  // Returns whether its rounds wait for a verdict (step_verdicts.h), which the lowest part with
  // chunks makes.
  bool needs_verdicts() const { return max_grad_norm > 0 || may_skip(); }
  // Returns "an infinity or a NaN"; if the guard has a bound, the text names values beyond it too.
  std::string unsound_value() const;
  uint32_t deciding_part() const { return filled_parts.empty() ? part : filled_parts.front(); }
  uint64_t element_count() const;
  // Returns "job 'train'" or "part 3 of job 'train'".
  std::string title() const;
};

// Returns "aggregate", "optimize" or "collective".
const char* mode_name(const JobSpec& spec);

// Checks whether the job's sums can be relayed to an upper box. The error names the setting that
// prevents it.
Status check_relayed(const JobSpec& spec);
// Checks whether a job that asks for a backup can have one.
Status check_replicas(const JobSpec& spec);

// Checks a name that a peer states: visible ASCII without quotes, and not too long.
Status check_job_name(const std::string& name);

// Checks every field. The error names the field, its value and what is allowed.
Result<JobSpec> parse_join(const proto::Join& join, const JobLimits& limits);

// Returns, in words, the first field in which a worker's description differs from the job's;
// nullopt if they are equal.
std::optional<std::string> first_difference(const JobSpec& job, const JobSpec& worker);

// Returns the chunks of the job's tensors, in tensor order.
std::vector<pipeline::ChunkSpec> cut_into_chunks(const JobSpec& spec);

}  // namespace pbox::control
