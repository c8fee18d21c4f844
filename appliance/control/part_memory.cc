#include "appliance/control/part_memory.h"

#include "appliance/control/job.h"
#include "appliance/control/start_plan.h"
#include "nic/wire/chunk_layout.h"

namespace pbox::control {
namespace {

// Bound on the text of a member: addresses, the reason of a loss, boxes. A member's other lists are
// bounded by the number of ranks and by wire::kStalenessMax.
constexpr uint64_t kMemberTextBytes = 1024;
// Beside its name, a tensor has two priorities, and an allocation of its own.
constexpr uint64_t kTensorBesideBytes = 64;
// A relayed chunk is a tensor of the relay's session: two copies of its name, its place in that
// session's tables, and its operation.
constexpr uint64_t kRelayedChunkBytes = 1024;

// Calls `add` with each size of chunk in turn and the number of chunks that have it.
template <typename Add>
void for_each_size(const JobSpec& spec, Add add) {
  for (const TensorSpec& tensor : spec.tensors) {
    const uint32_t element_bytes = wire::dtype_bytes(tensor.dtype);
    const uint64_t whole = tensor.bytes() / spec.chunk_bytes;
    const uint64_t rest = tensor.bytes() % spec.chunk_bytes;
    pipeline::ChunkSpec chunk{.elements = spec.chunk_bytes / element_bytes,
                              .dtype = tensor.wire_dtype(),
                              .row_bytes = tensor.row_elements * element_bytes,
                              .sync = tensor.sync};
    if (whole > 0) add(chunk, whole);
    chunk.elements = static_cast<uint32_t>(rest / element_bytes);
    if (rest > 0) add(chunk, uint64_t{1});
  }
}

}  // namespace

pipeline::ShardSpec shard_shape(const JobSpec& spec) {
  pipeline::ShardSpec shape;
  shape.name = spec.name;
  shape.part = spec.part;
  shape.mode = spec.mode;
  shape.is_collective = spec.collective;
  shape.reduction = spec.reduction;
  shape.weighted = spec.weighted;
  shape.optimizer = spec.optimizer;
  shape.sync = spec.sync;
  shape.relaxed_model = spec.relaxed_model;
  shape.delivery = spec.delivery;
  shape.numerics = spec.numerics;
  shape.guard = spec.guard;
  shape.partial = spec.on_worker_lost == LostPolicy::kPartial;
  shape.relayed = spec.relayed;
  shape.replicated = spec.replicas > 0;
  shape.gated = spec.needs_verdicts();
  shape.job_chunk_count = chunk_count(spec);
  shape.sessions.resize(spec.world_size);
  return shape;
}

uint64_t one_shard_bytes(const JobSpec& spec) {
  const pipeline::ShardSpec shape = shard_shape(spec);
  pipeline::ShardMemory memory(shape);
  for_each_size(
      spec, [&](const pipeline::ChunkSpec& chunk, uint64_t count) { memory.add(chunk, count); });
  return memory.bytes();
}

uint64_t worker_memory_bytes_max(const JobSpec& spec) {
  constexpr uint64_t kPerByte = 4;
  constexpr uint64_t kBeside = 64 << 20;
  uint64_t bytes = 0;
  for (const TensorSpec& tensor : spec.tensors) bytes += tensor.bytes();
  return kPerByte * spec.parts * bytes + kBeside;
}

uint64_t control_bytes(const JobSpec& spec) {
  const uint64_t chunks = chunk_count(spec);
  const uint64_t ranks = spec.world_size;
  uint64_t bytes = sizeof(Job) + ranks * (sizeof(Member) + kMemberTextBytes);
  for (const TensorSpec& tensor : spec.tensors) {
    bytes += sizeof(TensorSpec) + tensor.name.size() + kTensorBesideBytes;
  }
  // While the part opens, there are two lists of its chunks.
  bytes += chunks * (sizeof(uint8_t) + sizeof(ChunkStart) + 2 * sizeof(pipeline::ChunkSpec));
  bytes += ranks * chunks * sizeof(uint8_t);  // the map of chunks in each SESSION
  // Each rank that resumes reports a round and a bit for each chunk.
  if (spec.may_move()) bytes += ranks * (chunks * sizeof(uint32_t) + chunks / 8);
  if (spec.relayed || spec.replicas > 0) bytes += chunks * kRelayedChunkBytes;
  return bytes;
}

}  // namespace pbox::control
