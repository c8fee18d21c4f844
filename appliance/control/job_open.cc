// How a part is opened: the size of its fragments, its shards, their sessions and first rounds.
#include <algorithm>

#include "appliance/control/job.h"
#include "appliance/control/part_memory.h"
#include "appliance/control/sync_spec.h"
#include "nic/wire/chunk_layout.h"

namespace pbox::control {
namespace {

Error narrow_path(const Member& member, uint32_t rank, const std::string& remedy) {
  return {ErrorCode::kInvalidArgument, "rank " + std::to_string(rank) + " (" + member.peer +
                                           ") reaches this box with a path MTU of " +
                                           std::to_string(member.path_mtu) +
                                           ", which is too narrow; " + remedy};
}

// Returns the bytes of the widest fragment on the member's path; 0 if none fits.
uint32_t widest_on_path(const PipelineHost& host, const Member& member) {
  uint32_t mtu = member.path_mtu;
  bool ipv6 = false;  // the address family of the data, which may differ from that of control
  for (uint32_t index = 0; index < host.count(); ++index) {
    const PipelineInfo info = host.info(index);
    mtu = std::min(mtu, info.mtu);
    ipv6 =
        ipv6 || (info.address.empty() ? member.ipv6 : info.address.find(':') != std::string::npos);
  }
  return wire::fragment_bytes_for_mtu(mtu, ipv6);
}

// Gives each present rank's session on each pipeline its seal.
Status give_seals(const SessionMaker& sessions, const JobSpec& spec, const Roster& members,
                  uint32_t epoch, const JobShards::Shards& shards) {
  for (uint32_t index = 0; index < shards.size(); ++index) {
    for (pipeline::Session& session : shards[index]->sessions()) {
      if (!session.present) continue;
      auto seal =
          sessions.make(spec, epoch, session.rank, members[session.rank], index, session.spi);
      if (!seal) return seal.error();
      session.seal = std::move(*seal);
    }
  }
  return ok_status();
}

// Returns whether workers on this host read results from the shards' memory (ShardSpec::sharing).
bool shows_results(const JobSpec& spec, const Roster& members) {
  const bool stay = !spec.is_relaxed() && spec.on_worker_lost != LostPolicy::kPartial &&
                    spec.delivery == wire::Delivery::kBroadcast;
  return stay && std::any_of(members.begin(), members.end(),
                             [](const Member& member) { return member.is_on_host; });
}

}  // namespace

Result<uint32_t> Job::choose_fragment_bytes(const PipelineHost& host,
                                            const PartState* state) const {
  const auto widest = widest_fragment_bytes(host);
  const bool has_clocks =
      widest && state != nullptr && !state->chunks.empty() && !state->chunks.front().clocks.empty();
  if (!has_clocks) return widest;
  // Clocks count which fragments a rank has pushed, so the size of fragments cannot change.
  const uint32_t former = state->chunks.front().fragment_bytes;
  if (*widest >= former) return former;
  return Error{ErrorCode::kInvalidArgument,
               spec_.title() + " ran with fragments of " + std::to_string(former) +
                   " bytes, but some path to this box carries fragments of at most " +
                   std::to_string(*widest) + " bytes. A job of sync.model " +
                   to_string(spec_.relaxed_model) +
                   " cannot change them; give all boxes the same MTU, and start all ranks again "
                   "from a checkpoint"};
}

Result<uint32_t> Job::widest_fragment_bytes(const PipelineHost& host) const {
  uint32_t fragment_bytes = limits::kFragmentBytesMax;
  for (uint32_t rank = 0; rank < members_.size(); ++rank) {
    if (members_[rank].state == Member::State::kExcluded) continue;
    const uint32_t widest = widest_on_path(host, members_[rank]);
    if (widest == 0) {
      return narrow_path(members_[rank], rank, "raise the MTU of its interface to 1500");
    }
    fragment_bytes = std::min(fragment_bytes, widest);
  }
  const uint32_t fragments = wire::fragment_count(spec_.chunk_bytes, fragment_bytes);
  if (fragments > limits::kFragmentCountMax) {
    return Error{ErrorCode::kInvalidArgument,
                 "chunk_bytes " + std::to_string(spec_.chunk_bytes) + " needs " +
                     std::to_string(fragments) + " fragments of " + std::to_string(fragment_bytes) +
                     " bytes on the narrowest path; at most " +
                     std::to_string(limits::kFragmentCountMax) + ". Lower chunk_bytes to " +
                     std::to_string(limits::kFragmentCountMax * fragment_bytes / 64 * 64) +
                     ", or raise the MTU of every path to 9000, whose fragments hold " +
                     std::to_string(limits::kFragmentBytesJumbo)};
  }
  return fragment_bytes;
}

Status Job::check_path(const PipelineHost& host, const Member& member, uint32_t rank) const {
  if (widest_on_path(host, member) >= fragment_bytes_) return ok_status();
  return narrow_path(member, rank,
                     "the job runs with fragments of " + std::to_string(fragment_bytes_) +
                         " bytes; give it the path that the rank had before");
}

std::vector<int32_t> Job::chunk_priorities() const {
  std::vector<int32_t> priorities;
  priorities.reserve(shards_.chunk_count());
  for (size_t index = 0; index < spec_.tensors.size(); ++index) {
    const TensorSpec& tensor = spec_.tensors[index];
    const bool is_fifo = priority_policy_ == wire::PriorityPolicy::kFifo;
    const int32_t priority = is_fifo               ? 0
                             : priorities_.empty() ? tensor.priority
                                                   : priorities_[index];
    priorities.resize(priorities.size() + wire::chunk_count(tensor.bytes(), spec_.chunk_bytes),
                      priority);
  }
  return priorities;
}

std::vector<pipeline::ShardSpec> Job::shard_specs(const PipelineHost& host,
                                                  const std::vector<ChunkStart>& starts) const {
  std::vector<pipeline::ShardSpec> specs(shards_.pipelines().size(), shard_shape(spec_));
  auto chunks = cut_into_chunks(spec_);
  PBOX_CHECK(starts.empty() || starts.size() == chunks.size());  // by chunk
  const bool is_shown = shows_results(spec_, members_);
  for (uint32_t index = 0; index < specs.size(); ++index) {
    auto& spec = specs[index];
    const PipelineInfo info = host.info(shards_.pipelines()[index]);
    spec.numa_node = info.numa_node;
    spec.hugepages = info.hugepages;
    spec.report_fd = host.report_fd();
    if (is_shown) spec.sharing = Sharing::kReadable;
    spec.epoch = epoch_;
    spec.generation = static_cast<uint16_t>(generation_);
    spec.workers = members_.workers();
    spec.fragment_bytes = fragment_bytes_;
    spec.replicated = relay_ != nullptr && spec_.replicas > 0;
    if (relay_) spec.uplink_lanes = relay_->lane_count();
    for (uint32_t rank = 0; rank < members_.size(); ++rank) {
      spec.sessions[rank].present = members_[rank].state != Member::State::kExcluded;
      spec.sessions[rank].known_host = members_[rank].known_host;
      spec.sessions[rank].takes_zeros = members_[rank].takes_zeros();
    }
  }
  const std::vector<int32_t> priorities = chunk_priorities();
  const std::vector<wire::SyncSpec> rules = shards_.models().rules();
  for (auto& chunk : chunks) {
    chunk.priority = priorities[chunk.chunk];
    chunk.sync = rules[chunk.chunk];
    if (relay_) chunk.uplink_lane = relay_->lane_of(chunk.chunk);
    if (!starts.empty()) {
      const ChunkStart& start = starts[chunk.chunk];
      // A chunk that is handed over gets its rounds from the state, after it is laid out.
      chunk.first_round = start.is_handed_over ? 0 : start.round;
      chunk.copy_rank = start.copy_rank;
    }
    specs[shards_.chunk_pipeline()[chunk.chunk]].chunks.push_back(chunk);
  }
  return specs;
}

Status Job::reserve_memory(PipelineHost& host) {
  if (shards_.has_reserved()) return ok_status();
  return shards_.reserve(host, shard_specs(host, {}));
}

Status Job::open(PipelineHost& host, SpiAllocator& spis, const SessionMaker& sessions,
                 uint32_t epoch, const PartState* state) {
  PBOX_CHECK(!running());  // open shards would be replaced under their pipelines
  const auto fragment_bytes = choose_fragment_bytes(host, state);
  if (!fragment_bytes) return fragment_bytes.error();
  fragment_bytes_ = *fragment_bytes;
  starts_.clear();
  auto starts = plan_opening(spec_, members_, state);
  if (!starts) return starts.error();
  starts_ = std::move(*starts);
  shards_.models().begin(state != nullptr ? state->models : std::nullopt);
  epoch_ = epoch;
  for (const Member& member : members_) generation_ = std::max(generation_, member.generation);
  if (members_.count(Member::State::kExcluded) > 0) ++generation_;

  for (Member& member : members_) member.is_from_start = true;
  auto specs = shard_specs(host, starts_);
  if (const Status status = shards_.allocate_sessions(spis, specs); !status) return status;
  auto shards = build(specs, state);
  Status installed =
      shards ? give_seals(sessions, spec_, members_, epoch_, *shards) : Status(shards.error());
  if (installed) installed = shards_.install(host, std::move(*shards));
  if (!installed) {
    JobShards::release_sessions(spis, specs);
    return installed;
  }
  // A learning rate in `state` takes precedence, because the previous owner has confirmed it last.
  const auto rate = members_.newest_learning_rate();
  if (rate && (state == nullptr || !state->learning_rate)) shards_.set_learning_rate(host, *rate);
  if (restored_) restored_->chunks.clear();
  if (optimizer_state_) optimizer_state_->chunks.clear();
  return ok_status();
}

Result<JobShards::Shards> Job::build(std::vector<pipeline::ShardSpec>& specs,
                                     const PartState* state) {
  PBOX_CHECK(specs.size() == shards_.pipelines().size());
  JobShards::Shards shards;
  for (uint32_t index = 0; index < specs.size(); ++index) {
    if (state != nullptr && state->learning_rate) {
      specs[index].optimizer.learning_rate = *state->learning_rate;
    }
    auto shard = pipeline::JobShard::create(specs[index], shards_.take_reserved(index));
    if (!shard) return shard.error();
    shards.push_back(std::move(*shard));
  }
  begin_with_snapshot(shards);
  if (state == nullptr) return shards;
  for (const auto& chunk : state->chunks) {
    pipeline::restore(*shards[shards_.chunk_pipeline()[chunk.chunk]], chunk);
  }
  return shards;
}

}  // namespace pbox::control
