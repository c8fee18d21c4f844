// A job's part on the pipelines: how it begins, who takes part, how it ends.
#include <algorithm>

#include "appliance/control/job.h"
#include "appliance/control/sync_spec.h"
#include "nic/wire/chunk_layout.h"

namespace pbox::appliance {
namespace {

using pipeline::CommandKind;

Error narrow_path(const Member& member, uint32_t rank, const std::string& remedy) {
  return {ErrorCode::kInvalidArgument, "rank " + std::to_string(rank) + " (" + member.peer +
                                           ") reaches this box with " + "a path MTU of " +
                                           std::to_string(member.path_mtu) +
                                           ", which is too narrow; " + remedy};
}

}  // namespace

// Bytes of the widest fragment on the member's path; 0: none fits.
uint32_t Job::fits(const PipelineHost& host, const Member& member) const {
  uint32_t mtu = member.path_mtu;
  bool ipv6 = false;  // packets may go another way than control does
  for (uint32_t index = 0; index < host.count(); ++index) {
    const PipelineInfo info = host.info(index);
    mtu = std::min(mtu, info.mtu);
    ipv6 =
        ipv6 || (info.address.empty() ? member.ipv6 : info.address.find(':') != std::string::npos);
  }
  return wire::fragment_bytes_for_mtu(mtu, ipv6);
}

Result<uint32_t> Job::choose_fragment_bytes(const PipelineHost& host,
                                            const PartState* state) const {
  const auto widest = widest_fragment_bytes(host);
  const bool has_clocks =
      widest && state != nullptr && !state->chunks.empty() && !state->chunks.front().clocks.empty();
  if (!has_clocks) return widest;
  // Which fragments a rank has pushed is counted in those of before.
  const uint32_t of_before = state->chunks.front().fragment_bytes;
  if (*widest >= of_before) return of_before;
  return Error{ErrorCode::kInvalidArgument,
               spec_.title() + " ran with fragments of " + std::to_string(of_before) +
                   " bytes, but some path to this box holds " + std::to_string(*widest) +
                   ", and a job of sync.model " + to_string(spec_.sync.model) +
                   " cannot change them; give all boxes the same MTU, and start all ranks again "
                   "from a checkpoint"};
}

Result<uint32_t> Job::widest_fragment_bytes(const PipelineHost& host) const {
  uint32_t fragment_bytes = limits::kFragmentBytesMax;
  for (uint32_t rank = 0; rank < members_.size(); ++rank) {
    if (members_[rank].state == Member::State::kExcluded) continue;
    const uint32_t widest = fits(host, members_[rank]);
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
  if (fits(host, member) >= fragment_bytes_) return ok_status();
  return narrow_path(member, rank,
                     "the job runs with fragments of " + std::to_string(fragment_bytes_) +
                         " bytes; give it the path that the rank had before");
}

// By chunk, as the policy has it now.
std::vector<int32_t> Job::chunk_priorities() const {
  std::vector<int32_t> priorities;
  priorities.reserve(chunk_pipeline_.size());
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

std::vector<pipeline::ShardSpec> Job::shard_specs(const std::vector<ChunkStart>& starts) const {
  std::vector<pipeline::ShardSpec> specs(pipelines_.size());
  auto chunks = cut_into_chunks(spec_);
  for (auto& spec : specs) {
    spec.name = spec_.name;
    spec.part = spec_.part;
    spec.epoch = epoch_;
    spec.generation = static_cast<uint16_t>(generation_);
    spec.fragment_bytes = fragment_bytes_;
    spec.mode = spec_.mode;
    spec.reduction = spec_.reduction;
    spec.optimizer = spec_.optimizer;
    spec.sync = spec_.sync;
    spec.delivery = spec_.delivery;
    spec.numerics = spec_.numerics;
    spec.partial = spec_.on_worker_lost == LostPolicy::kPartial;
    spec.relayed = spec_.relayed;
    spec.replicated = relay != nullptr && spec_.replicas > 0;
    spec.job_chunk_count = static_cast<uint32_t>(chunks.size());
    spec.sessions.resize(spec_.world_size);
    for (uint32_t rank = 0; rank < members_.size(); ++rank) {
      spec.sessions[rank].present = members_[rank].state != Member::State::kExcluded;
    }
  }
  const std::vector<int32_t> priorities = chunk_priorities();
  for (auto& chunk : chunks) {
    chunk.priority = priorities[chunk.chunk];
    if (!starts.empty()) {
      const ChunkStart& start = starts[chunk.chunk];
      chunk.first_round = start.is_handed_over ? 0 : start.round;  // restored once it is laid out
      chunk.copy_rank = start.copy_rank;
    }
    specs[chunk_pipeline_[chunk.chunk]].chunks.push_back(chunk);
  }
  return specs;
}

std::vector<ConsumedRounds> Job::stated() const {
  std::vector<ConsumedRounds> stated;
  for (uint32_t rank = 0; rank < members_.size(); ++rank) {
    const Member& member = members_[rank];
    if (member.resumes && ready(member)) stated.push_back({rank, member.consumed, member.lacks});
  }
  return stated;
}

Result<std::vector<uint32_t>> Job::beyond_recovery(const PartState* state) const {
  std::vector<uint32_t> beyond;
  const auto workers = stated();
  if (workers.empty()) return beyond;
  const auto starts = plan_starts(state);
  if (!starts) return starts.error();
  for (const ConsumedRounds& worker : workers) {
    if (is_beyond(worker, *starts)) beyond.push_back(worker.rank);
  }
  return beyond;
}

// All or none.
Status Job::allocate_sessions(SpiAllocator& spis, std::vector<pipeline::ShardSpec>& specs) const {
  for (uint32_t index = 0; index < specs.size(); ++index) {
    for (auto& session : specs[index].sessions) {
      if (!session.present) continue;
      const auto spi = spis.allocate(pipelines_[index]);
      if (!spi) {
        release(spis, specs);
        return Error{ErrorCode::kResourceExhausted, "the box has no free session on pipeline " +
                                                        std::to_string(pipelines_[index])};
      }
      session.spi = *spi;
    }
  }
  return ok_status();
}

void Job::release(SpiAllocator& spis, const std::vector<pipeline::ShardSpec>& specs) {
  for (const auto& spec : specs) {
    for (const auto& session : spec.sessions) {
      if (session.spi != 0) spis.release(session.spi);
    }
  }
}

Status Job::open(PipelineHost& host, SpiAllocator& spis, uint32_t epoch, const PartState* state) {
  const auto fragment_bytes = choose_fragment_bytes(host, state);
  if (!fragment_bytes) return fragment_bytes.error();
  fragment_bytes_ = *fragment_bytes;
  starts_.clear();
  if (const auto workers = stated(); !workers.empty()) {
    auto starts = plan_starts(state);
    if (!starts) return starts.error();
    const bool has_newcomers =
        std::any_of(members_.begin(), members_.end(), [](const auto& member) {
          return member.state == Member::State::kJoined && !member.resumes;
        });
    const bool optimizes = spec_.mode == pipeline::Mode::kOptimize;
    if (optimizes) {
      if (Status status = open_for_weights(workers, *starts); !status) return status;
    } else if (has_newcomers) {
      if (Status status = open_for_newcomers(workers, chunk_counts(), *starts); !status) {
        return status;
      }
    }
    starts_ = std::move(*starts);
  }
  epoch_ = epoch;
  for (const Member& member : members_) generation_ = std::max(generation_, member.generation);
  if (count(Member::State::kExcluded) > 0) ++generation_;

  auto specs = shard_specs(starts_);
  if (const Status status = allocate_sessions(spis, specs); !status) return status;
  std::vector<std::unique_ptr<pipeline::JobShard>> shards;
  Status status = build(host, specs, state, shards);
  if (status) status = install(host, std::move(shards));
  if (!status) release(spis, specs);
  // A rate that was handed over is the last that the box before had confirmed.
  if (status && (state == nullptr || !state->learning_rate)) repeat_learning_rate(host);
  return status;
}

Status Job::build(const PipelineHost& host, std::vector<pipeline::ShardSpec>& specs,
                  const PartState* state,
                  std::vector<std::unique_ptr<pipeline::JobShard>>& shards) const {
  for (uint32_t index = 0; index < specs.size(); ++index) {
    const PipelineInfo info = host.info(pipelines_[index]);
    specs[index].numa_node = info.numa_node;
    specs[index].hugepages = info.hugepages;
    if (state != nullptr && state->learning_rate) {
      specs[index].optimizer.learning_rate = *state->learning_rate;
    }
    auto shard = pipeline::JobShard::create(specs[index]);
    if (!shard) return shard.error();
    shards.push_back(std::move(*shard));
  }
  begin_with_snapshot(shards);
  if (state == nullptr) return ok_status();
  for (const auto& chunk : state->chunks) {
    pipeline::restore(*shards[chunk_pipeline_[chunk.chunk]], chunk);
  }
  return ok_status();
}

// As the ranks say that it was on the box before.
void Job::repeat_learning_rate(PipelineHost& host) {
  const auto setter = std::max_element(
      members_.begin(), members_.end(), [](const Member& member, const Member& other) {
        return member.learning_rates_set < other.learning_rates_set;
      });
  if (setter->learning_rates_set > 0) set_learning_rate(host, setter->learning_rate);
}

// All or none.
Status Job::install(PipelineHost& host, std::vector<std::unique_ptr<pipeline::JobShard>> shards) {
  for (uint32_t index = 0; index < shards.size(); ++index) {
    const Status status = host.install(pipelines_[index], *shards[index]);
    if (status) continue;
    for (uint32_t before = 0; before < index; ++before) {
      host.remove(pipelines_[before], std::move(shards[before]));
    }
    return status;
  }
  shards_ = std::move(shards);
  return ok_status();
}

void Job::close(PipelineHost& host, SpiAllocator& spis) {
  relay.reset();  // before the memory that it sends from
  backup.probe.reset();
  for (uint32_t index = 0; index < shards_.size(); ++index) {
    std::vector<uint32_t> released;
    for (const auto& session : shards_[index]->sessions()) {
      if (session.present) released.push_back(session.spi);
    }
    host.remove(pipelines_[index], std::move(shards_[index]));
    for (const uint32_t spi : released) spis.release(spi);
  }
  shards_.clear();
  traces_.clear();
}

Status Job::admit(PipelineHost& host, SpiAllocator& spis, uint32_t rank) {
  std::vector<uint32_t> fresh;
  for (uint32_t index = 0; index < shards_.size(); ++index) {
    const auto spi = spis.allocate(pipelines_[index]);
    if (!spi) {
      for (const uint32_t taken : fresh) spis.release(taken);
      return Error{ErrorCode::kResourceExhausted,
                   "the box has no free session on pipeline " + std::to_string(pipelines_[index])};
    }
    fresh.push_back(*spi);
  }
  if (members_[rank].state == Member::State::kExcluded) ++generation_;
  for (uint32_t index = 0; index < shards_.size(); ++index) {
    const pipeline::Session& session = shards_[index]->sessions()[rank];
    const bool was_present = session.present;
    const uint32_t former = session.spi;
    host.execute(pipelines_[index], {.kind = CommandKind::kAdmit,
                                     .shard = shards_[index].get(),
                                     .credit_bytes = session.credit_bytes,
                                     .rank = rank,
                                     .spi = fresh[index],
                                     .generation = static_cast<uint16_t>(generation_)});
    if (was_present) spis.release(former);
  }
  return ok_status();
}

void Job::exclude(PipelineHost& host, SpiAllocator& spis, uint32_t rank) {
  ++generation_;
  for (uint32_t index = 0; index < shards_.size(); ++index) {
    const uint32_t former = shards_[index]->sessions()[rank].spi;
    host.execute(pipelines_[index], {.kind = CommandKind::kExclude,
                                     .shard = shards_[index].get(),
                                     .rank = rank,
                                     .generation = static_cast<uint16_t>(generation_)});
    spis.release(former);
  }
}

std::vector<uint32_t> Job::open_rounds(PipelineHost& host, uint32_t rank) const {
  std::vector<std::vector<uint32_t>> by_pipeline(shards_.size());
  for (uint32_t index = 0; index < shards_.size(); ++index) {
    by_pipeline[index].resize(shards_[index]->chunks().size());
    host.execute(pipelines_[index], {.kind = CommandKind::kReportRounds,
                                     .shard = shards_[index].get(),
                                     .rank = rank,
                                     .rounds = by_pipeline[index]});
  }
  std::vector<size_t> next(shards_.size(), 0);
  std::vector<uint32_t> rounds;
  rounds.reserve(chunk_pipeline_.size());
  for (const uint8_t owner : chunk_pipeline_) rounds.push_back(by_pipeline[owner][next[owner]++]);
  return rounds;
}

bool Job::has_restarted_optimizer() const {
  return spec_.mode == pipeline::Mode::kOptimize &&
         optimizer::state_floats_per_element(spec_.optimizer.kind) > 0 &&
         std::any_of(starts_.begin(), starts_.end(),
                     [](const ChunkStart& start) { return start.copy_rank != pipeline::kNoRank; });
}

std::vector<uint32_t> Job::rounds_for_newcomer(std::vector<uint32_t> open_rounds) const {
  if (spec_.mode == pipeline::Mode::kAggregate) return open_rounds;
  for (uint32_t chunk = 0; chunk < starts_.size(); ++chunk) {
    const bool is_copied =
        starts_[chunk].copy_rank != pipeline::kNoRank && starts_[chunk].round == open_rounds[chunk];
    if (is_copied) ++open_rounds[chunk];
  }
  return open_rounds;
}

bool Job::lacks_for_newcomer(const std::vector<uint32_t>& open_rounds) const {
  if (starts_.empty() || spec_.mode == pipeline::Mode::kOptimize) return false;
  uint32_t first = 0;
  for (const uint32_t count : chunk_counts()) {
    const uint32_t end = first + count;
    uint32_t least = open_rounds[first];
    for (uint32_t chunk = first; chunk < end; ++chunk) {
      if (wire::round_distance(open_rounds[chunk], least) < 0) least = open_rounds[chunk];
    }
    for (uint32_t chunk = first; chunk < end; ++chunk) {
      const bool is_first_here = open_rounds[chunk] == starts_[chunk].round;
      if (open_rounds[chunk] != least && is_first_here) return true;
    }
    first = end;
  }
  return false;
}

std::vector<uint32_t> Job::chunk_counts() const {
  std::vector<uint32_t> counts;
  for (const TensorSpec& tensor : spec_.tensors) {
    counts.push_back(static_cast<uint32_t>(wire::chunk_count(tensor.bytes(), spec_.chunk_bytes)));
  }
  return counts;
}

std::vector<uint32_t> Job::copies_owed(uint32_t rank,
                                       const std::vector<uint32_t>& open_rounds) const {
  std::vector<uint32_t> owed;
  for (uint32_t chunk = 0; chunk < starts_.size(); ++chunk) {
    const bool is_open = starts_[chunk].round == open_rounds[chunk];
    if (is_open && starts_[chunk].copy_rank == rank) owed.push_back(chunk);
  }
  return owed;
}

void Job::set_learning_rate(PipelineHost& host, float learning_rate) {
  for (uint32_t index = 0; index < shards_.size(); ++index) {
    host.execute(pipelines_[index], {.kind = CommandKind::kSetLearningRate,
                                     .shard = shards_[index].get(),
                                     .learning_rate = learning_rate});
  }
}

void Job::set_priorities(PipelineHost& host, wire::PriorityPolicy policy,
                         std::vector<int32_t> by_tensor) {
  priority_policy_ = policy;
  priorities_ = std::move(by_tensor);
  proto::SetPriorities& told = priorities_set_.emplace();
  told.set_policy(static_cast<uint32_t>(policy));
  told.mutable_by_tensor()->Add(priorities_.begin(), priorities_.end());
  const std::vector<int32_t> by_chunk = chunk_priorities();
  std::vector<std::vector<int32_t>> by_pipeline(shards_.size());
  for (size_t chunk = 0; running() && chunk < by_chunk.size(); ++chunk) {
    by_pipeline[chunk_pipeline_[chunk]].push_back(by_chunk[chunk]);
  }
  for (uint32_t index = 0; index < shards_.size(); ++index) {
    host.execute(pipelines_[index], {.kind = CommandKind::kSetPriorities,
                                     .shard = shards_[index].get(),
                                     .priorities = by_pipeline[index]});
  }
}

void Job::set_credit(PipelineHost& host, uint32_t pipeline, uint32_t credit_bytes) {
  const auto found = std::find(pipelines_.begin(), pipelines_.end(), pipeline);
  if (!running() || found == pipelines_.end()) return;
  host.execute(pipeline, {.kind = CommandKind::kSetCredit,
                          .shard = shards_[found - pipelines_.begin()].get(),
                          .credit_bytes = credit_bytes});
}

}  // namespace pbox::appliance
