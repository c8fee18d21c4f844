// A job as its workers describe it: parsed from JOIN, checked against the box's limits, compared
// between ranks. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "nic/wire/control.pb.h"
#include "nic/wire/schedule.h"
#include "nic/wire/sync.h"
#include "pipeline/job_shard.h"

namespace pbox::appliance {

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
  uint64_t first_element = 0;  // of a tensor whose other pieces are in other parts

  uint64_t bytes() const { return elements * wire::dtype_bytes(dtype); }
};

// What becomes of a running job that loses a rank. Values are stable: they cross the control
// connection.
enum class LostPolicy : uint8_t {
  kWait = 0,     // for its time-out; then the job fails
  kPartial = 1,  // for its time-out; then the job goes on without the rank
  kAbort = 2,    // the job fails at once
};

// What becomes of a job whose box is lost.
enum class Recovery : uint8_t {
  kCopy = 0,  // its workers keep what another box needs to go on
  kNone = 1,  // it fails
};

struct JobSpec {
  std::string name;
  uint32_t part = 0;  // of the job that the tensors below are; joined, run and moved by itself
  uint32_t parts = 1;
  uint32_t world_size = 0;
  pipeline::Mode mode = pipeline::Mode::kAggregate;
  pipeline::Reduction reduction = pipeline::Reduction::kSum;
  optimizer::OptimizerSpec optimizer;
  LostPolicy on_worker_lost = LostPolicy::kWait;
  Recovery recovery = Recovery::kCopy;
  wire::SyncSpec sync;
  wire::PriorityPolicy priority_policy = wire::PriorityPolicy::kExplicit;  // at first
  wire::Delivery delivery = wire::Delivery::kBroadcast;
  wire::Numerics numerics = wire::Numerics::kFast;
  uint32_t chunk_bytes = limits::kChunkBytesDefault;
  std::string restore;     // the snapshot to begin with, "latest" or a number; empty: none
  bool relayed = false;    // its sums go on to another box; said by the box, not by its ranks
  uint32_t replicas = 0;   // mode optimize: other boxes that have a copy of weights and state
  bool is_backup = false;  // it is such a copy, of another box's; it stays where it is
  std::vector<TensorSpec> tensors;

  // Where sums are relayed other racks may have consumed what this one has not.
  bool survives_its_box() const { return recovery == Recovery::kCopy && !relayed; }
  // From a box that is there to another. Beyond BSP that takes nothing of its workers.
  bool may_move() const { return survives_its_box() || sync.model != wire::SyncModel::kBsp; }
  uint64_t element_count() const;
  // "job 'train'", "part 3 of job 'train'"
  std::string title() const;
};

// Whether its sums can go on to another box; the error says what cannot.
Status check_relayed(const JobSpec& spec);
// Of a job that wants a copy, whether it can have one.
Status check_replicas(const JobSpec& spec);

// Every field checked; the error names the field, its value and what is allowed.
Result<JobSpec> parse_join(const proto::Join& join, const JobLimits& limits);

// The first thing in which a worker's description differs from the job's, in words; nothing if
// equal.
std::optional<std::string> first_difference(const JobSpec& job, const JobSpec& worker);

// The job cut into chunks, in tensor order.
std::vector<pipeline::ChunkSpec> cut_into_chunks(const JobSpec& spec);

}  // namespace pbox::appliance
