#include "appliance/control/job_relay.h"

#include "appliance/control/compression_spec.h"
#include "appliance/control/job.h"
#include "appliance/control/sync_spec.h"
#include "appliance/control/table_spec.h"
#include "appliance/placement/chunk_map.h"
#include "base/clock.h"
#include "nic/wire/chunk_layout.h"
#include "pipeline/state/state_codec.h"

namespace pbox::control {
namespace {

// Time for the backup box to answer. The ranks wait meanwhile.
constexpr uint64_t kJoinBackupNs = 2 * kNanosPerSecond;

// Returns the name that the other box shows for a chunk, for example "layer1.weight[3]". A tensor
// name that is too long is cut short, before a character that does not fit: a message must not have
// half of one.
std::string chunk_name(const std::string& tensor, uint64_t index) {
  std::string number = "[";
  number.append(std::to_string(index)).append("]");
  const auto continues = [&](size_t at) {
    return at < tensor.size() && (static_cast<unsigned char>(tensor[at]) & 0xc0) == 0x80;
  };
  size_t bytes = limits::kTensorNameBytesMax - number.size();
  while (bytes > 0 && continues(bytes)) --bytes;
  return tensor.substr(0, bytes) + number;
}

// Returns whether the names of all chunks, with the numbers beside each, leave room for the rest of
// a JOIN.
bool names_fit(const std::vector<RelayedChunk>& chunks) {
  constexpr size_t kNumbersBytes = 24;
  size_t bytes = 0;
  for (const RelayedChunk& chunk : chunks) bytes += chunk.name.size() + kNumbersBytes;
  return bytes <= limits::kControlMessageBytesMax * 3 / 4;
}

constexpr size_t kRelayedChunksMax = limits::kTensorsPerJobMax - kTensorsBesideChunks;

// Returns how many ranks' clocks a copy has.
size_t ranks_with_clocks(const JobSpec& spec) {
  return spec.is_relaxed() ? spec.world_size : 0;
}

}  // namespace

Status check_relayed(const JobSpec& spec) {
  const auto refuse = [&](const std::string& why) {
    return Error{ErrorCode::kInvalidArgument, spec.title() + ": " + why +
                                                  " ([upstream]: this box forwards its sums to "
                                                  "another box)"};
  };
  if (spec.is_relaxed()) {
    return refuse(std::string("sync.model ") + to_string(spec.relaxed_model) +
                  " cannot be used here, because the upper box sees racks and not their "
                  "ranks; use bsp");
  }
  if (spec.needs_verdicts()) {
    return refuse(
        "max_grad_norm, skip_nonfinite and guard reject cannot be used here in mode optimize, "
        "because ranks would not learn the upper box's verdicts; do without them, or let all ranks "
        "join the upper box");
  }
  if (spec.weighted) {
    return refuse(
        "weighted cannot be used here, because sums are forwarded without the sum of their "
        "weights; leave it out, or let all ranks join the upper box");
  }
  if (!spec.restore.empty()) {
    return refuse(
        "restore cannot be used here, because only the upper box has snapshots; load a checkpoint "
        "on "
        "rank 0 of rack 0, or let all ranks join the upper box");
  }
  if (spec.replicas > 0) {
    return refuse(
        "replicas 1 cannot be used here, because this box has no optimizer state; set replicas 0");
  }
  if (const TensorSpec* table = first_table(spec)) {
    return refuse("tensor '" + table->name + "' has row_elements " +
                  std::to_string(table->row_elements) +
                  ", but sums are forwarded whole; leave row_elements out, or let all ranks join "
                  "the upper box");
  }
  if (const TensorSpec* tensor = first_compressed(spec)) {
    return refuse("tensor '" + tensor->name + "' has compression " +
                  to_string(tensor->compression) +
                  ", but sums are forwarded as f32; set compression none, or let all ranks join "
                  "the upper box");
  }
  if (spec.collective) {
    return refuse(
        "mode collective cannot be used here, because the upper box would not learn the shapes of "
        "its rounds; use mode aggregate, or let all ranks join the upper box");
  }
  if (spec.on_worker_lost == LostPolicy::kPartial) {
    return refuse(
        "on_worker_lost partial cannot be used, because the other racks are not told who is "
        "missing; use wait or abort");
  }
  if (const uint32_t chunks = chunk_count(spec); chunks > kRelayedChunksMax) {
    return refuse("chunk_bytes " + std::to_string(spec.chunk_bytes) + " makes " +
                  std::to_string(chunks) + " chunks, but at most " +
                  std::to_string(kRelayedChunksMax) + " can be forwarded; raise chunk_bytes");
  }
  return ok_status();
}

Status check_replicas(const JobSpec& spec) {
  const auto refuse = [&](const std::string& why) {
    return Error{ErrorCode::kInvalidArgument, spec.title() + ": replicas 1 " + why};
  };
  if (spec.mode != pipeline::Mode::kOptimize) {
    return refuse(
        "needs mode optimize: in mode aggregate sums are recovered from the ranks; set replicas 0");
  }
  const bool drops = spec.relaxed_model == wire::SyncModel::kDrop;
  if (spec.is_relaxed() && !drops) {
    return refuse(std::string("needs sync model bsp or drop: with ") +
                  to_string(spec.relaxed_model) +
                  " every push changes the weights, and each would have to be copied before it is "
                  "answered; set replicas 0");
  }
  if (!drops && spec.recovery != Recovery::kCopy) {
    return refuse(
        "needs recovery copy with sync model bsp: with none a rank gives up once its box is lost");
  }
  if (!drops && spec.on_worker_lost == LostPolicy::kPartial) {
    return refuse(
        "does not record which ranks are in a result; set on_worker_lost wait or abort, or use "
        "model drop");
  }
  if (const uint32_t chunks = chunk_count(spec); chunks > kRelayedChunksMax) {
    return refuse("allows at most " + std::to_string(kRelayedChunksMax) +
                  " chunks, but there are " + std::to_string(chunks) + "; raise chunk_bytes");
  }
  return ok_status();
}

RelaySpec relay_spec(const JobSpec& spec, uint32_t workers, const JobTimeouts& timeouts) {
  RelaySpec relay{spec.name, workers, spec.numerics, timeouts.join_ns, timeouts.stated_lost_ms, {}};
  relay.mode = spec.mode;
  relay.optimizer = spec.optimizer;
  relay.reduction = spec.reduction;
  relay.guard = spec.guard.policy;
  relay.part = spec.part;
  relay.parts = spec.parts;
  const auto chunks = cut_into_chunks(spec);
  relay.chunks.reserve(chunks.size());
  for (const TensorSpec& tensor : spec.tensors) {
    const uint64_t count = wire::chunk_count(tensor.bytes(), spec.chunk_bytes);
    for (uint64_t index = 0; index < count; ++index) {
      const auto& chunk = chunks[relay.chunks.size()];
      const bool is_fifo = spec.priority_policy == wire::PriorityPolicy::kFifo;
      const int32_t priority = is_fifo ? 0 : chunk.priority;
      relay.chunks.push_back({chunk_name(tensor.name, index), chunk.elements, priority,
                              chunk.lr_scale, chunk.weight_decay});
    }
  }
  PBOX_CHECK(relay.chunks.size() == chunks.size());  // chunk ids are the same on both boxes
  if (!names_fit(relay.chunks)) {
    for (size_t chunk = 0; chunk < relay.chunks.size(); ++chunk) {
      relay.chunks[chunk].name = std::to_string(chunk);
    }
  }
  return relay;
}

std::vector<uint8_t> uplink_lanes(const RelaySpec& relay, size_t lanes) {
  std::vector<uint32_t> bytes;
  for (const RelayedChunk& chunk : relay.chunks) bytes.push_back(chunk.elements * sizeof(float));
  return placement::assign_chunks(bytes, std::vector<uint64_t>(lanes, 0));
}

std::vector<uint8_t> uplink_lanes(const JobSpec& spec, size_t lanes) {
  std::vector<uint32_t> bytes;
  for (const auto& chunk : cut_into_chunks(spec)) bytes.push_back(chunk.elements * sizeof(float));
  return placement::assign_chunks(bytes, std::vector<uint64_t>(lanes, 0));
}

RelaySpec backup_spec(const JobSpec& spec, const std::string& name) {
  RelaySpec relay = relay_spec(spec, 1, {.join_ns = kJoinBackupNs});
  relay.job = name;
  relay.mode = pipeline::Mode::kAggregate;
  relay.reduction = pipeline::Reduction::kSum;
  relay.part = 0;
  relay.parts = 1;
  relay.numerics = wire::Numerics::kFast;
  relay.guard = wire::Guard::kFlag;
  relay.is_backup = true;
  relay.has_clocks = spec.is_relaxed();
  for (RelayedChunk& chunk : relay.chunks) {
    const auto block =
        pipeline::StateLayout::block(spec.optimizer.kind, chunk.elements, ranks_with_clocks(spec));
    chunk.elements = static_cast<uint32_t>(block.floats);
  }
  return relay;
}

std::vector<std::vector<float>> backup_blocks(const JobSpec& spec, const PartState& state) {
  const auto chunks = cut_into_chunks(spec);
  std::vector<std::vector<float>> blocks(chunks.size());
  for (const pipeline::ChunkState& chunk : state.chunks) {
    blocks[chunk.chunk] = pipeline::encode_block(
        chunk, spec.optimizer.kind, chunks[chunk.chunk].elements, ranks_with_clocks(spec));
  }
  return blocks;
}

}  // namespace pbox::control
