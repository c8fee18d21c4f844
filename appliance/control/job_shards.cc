#include "appliance/control/job_shards.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "appliance/control/job_relay.h"
#include "appliance/control/part_memory.h"
#include "appliance/placement/chunk_map.h"
#include "base/limits.h"
#include "pipeline/shard_memory.h"

namespace pbox::control {
namespace {

using pipeline::CommandKind;

Error no_free_session(uint32_t pipeline) {
  return {ErrorCode::kResourceExhausted,
          "the box has no free session on pipeline " + std::to_string(pipeline)};
}

// Groups per pipeline of a part that uses all pipelines. With this many, each group is a small
// share of a pipeline's load.
constexpr size_t kGroupsPerPipeline = 8;

std::vector<uint32_t> bytes_of_chunks(const JobSpec& spec) {
  std::vector<uint32_t> bytes;
  for (const auto& chunk : cut_into_chunks(spec)) {
    bytes.push_back(wire::payload_bytes(chunk.dtype, chunk.elements));
  }
  return bytes;
}

}  // namespace

JobShards::JobShards(const JobSpec& spec, const Placement& placement)
    : models_(spec), pipeline_bytes_(placement.loads_bytes.size(), 0) {
  const std::vector<uint64_t>& loads_bytes = placement.loads_bytes;
  PBOX_CHECK(!loads_bytes.empty());  // a box has at least one pipeline
  const std::vector<uint32_t> chunk_bytes = bytes_of_chunks(spec);
  if (placement.pipeline) {
    PBOX_CHECK(*placement.pipeline < loads_bytes.size());
    pipelines_ = {*placement.pipeline};
    chunk_pipeline_.assign(chunk_bytes.size(), 0);
  } else if (spec.parts == 1) {
    pipelines_.resize(loads_bytes.size());
    std::iota(pipelines_.begin(), pipelines_.end(), 0u);
    chunk_pipeline_ = spec.relayed ? uplink_lanes(spec, pipelines_.size())
                                   : placement::assign_chunks(chunk_bytes, loads_bytes);
  } else {  // a job has more parts than a box has pipelines, so one pipeline is enough for a part
    const auto least = std::min_element(loads_bytes.begin(), loads_bytes.end());
    pipelines_ = {static_cast<uint32_t>(least - loads_bytes.begin())};
    chunk_pipeline_.assign(chunk_bytes.size(), 0);
  }
  PBOX_CHECK(chunk_pipeline_.size() == chunk_bytes.size());  // every chunk has a place
  count_bytes(chunk_bytes);
  footprints_ = footprints_of(spec, {pipelines_, chunk_pipeline_});
  form_groups(chunk_bytes);
}

void JobShards::count_bytes(const std::vector<uint32_t>& chunk_bytes) {
  std::fill(pipeline_bytes_.begin(), pipeline_bytes_.end(), 0);
  for (size_t chunk = 0; chunk < chunk_bytes.size(); ++chunk) {
    pipeline_bytes_[pipelines_[chunk_pipeline_[chunk]]] += chunk_bytes[chunk];
  }
}

// Divides the chunks of each pipeline into groups. A pipeline gets groups in proportion to its
// share of the part's bytes.
void JobShards::form_groups(const std::vector<uint32_t>& chunk_bytes) {
  if (pipelines_.size() == 1) {
    chunk_group_.assign(chunk_bytes.size(), 0);
    group_pipelines_ = pipelines_;
    return;
  }
  const auto in_all = static_cast<double>(
      std::accumulate(pipeline_bytes_.begin(), pipeline_bytes_.end(), uint64_t{0}));
  const size_t groups =
      std::min<size_t>(kGroupsPerPipeline * pipelines_.size(), limits::kPartsPerJobMax);
  chunk_group_.resize(chunk_bytes.size());
  for (uint32_t index = 0; index < pipelines_.size(); ++index) {
    std::vector<uint32_t> own, own_bytes;
    for (uint32_t chunk = 0; chunk < chunk_bytes.size(); ++chunk) {
      if (chunk_pipeline_[chunk] != index) continue;
      own.push_back(chunk);
      own_bytes.push_back(chunk_bytes[chunk]);
    }
    if (own.empty()) continue;
    const double share = static_cast<double>(pipeline_bytes_[pipelines_[index]]) / in_all;
    const double worth = std::round(share * static_cast<double>(groups));
    const auto count =
        std::clamp<size_t>(static_cast<size_t>(worth), 1, std::min<size_t>(own.size(), UINT8_MAX));
    const auto bins = placement::assign_chunks(own_bytes, std::vector<uint64_t>(count, 0));
    for (size_t chunk = 0; chunk < own.size(); ++chunk) {
      chunk_group_[own[chunk]] = static_cast<uint16_t>(group_pipelines_.size() + bins[chunk]);
    }
    group_pipelines_.insert(group_pipelines_.end(), count, pipelines_[index]);
  }
}

// A part that uses all pipelines of the box goes on using all, even if some have none of its
// chunks.
JobShards::Map JobShards::map_with(const std::vector<uint32_t>& group_pipelines) const {
  PBOX_CHECK(group_pipelines.size() == group_pipelines_.size());
  Map map{pipelines_, chunk_pipeline_};
  if (pipelines_.size() == 1) {
    map.pipelines = group_pipelines;
    return map;
  }
  for (size_t chunk = 0; chunk < chunk_group_.size(); ++chunk) {
    const uint32_t pipeline = group_pipelines[chunk_group_[chunk]];
    PBOX_CHECK(pipeline < pipelines_.size() && pipelines_[pipeline] == pipeline);
    map.chunk_pipeline[chunk] = static_cast<uint8_t>(pipeline);
  }
  return map;
}

std::vector<uint64_t> JobShards::footprints_of(const JobSpec& spec, const Map& map) const {
  const pipeline::ShardSpec shape = shard_shape(spec);
  std::vector<pipeline::ShardMemory> memory(map.pipelines.size(), pipeline::ShardMemory(shape));
  for (const auto& chunk : cut_into_chunks(spec))
    memory[map.chunk_pipeline[chunk.chunk]].add(chunk);
  std::vector<uint64_t> footprints(pipeline_bytes_.size(), 0);
  for (size_t index = 0; index < memory.size(); ++index) {
    PBOX_CHECK(map.pipelines[index] < footprints.size());
    footprints[map.pipelines[index]] = memory[index].bytes();
  }
  return footprints;
}

std::vector<uint64_t> JobShards::footprints_with(const JobSpec& spec,
                                                 const std::vector<uint32_t>& pipelines) const {
  return footprints_of(spec, map_with(pipelines));
}

void JobShards::move_groups(const JobSpec& spec, const std::vector<uint32_t>& pipelines) {
  PBOX_CHECK(!running() && !has_reserved());
  Map map = map_with(pipelines);
  footprints_ = footprints_of(spec, map);
  pipelines_ = std::move(map.pipelines);
  chunk_pipeline_ = std::move(map.chunk_pipeline);
  group_pipelines_ = pipelines;
  count_bytes(bytes_of_chunks(spec));
}

pipeline::Chunk* JobShards::find(uint32_t chunk) const {
  PBOX_CHECK(running() && chunk < chunk_pipeline_.size());
  pipeline::Chunk* found = shards_[chunk_pipeline_[chunk]]->find(chunk);
  PBOX_CHECK(found != nullptr);  // the shard was built from the same placement
  return found;
}

uint64_t JobShards::rounds_finished() const {
  uint64_t rounds = 0;
  for (const auto& shard : shards_) rounds += shard->rounds_finished.get();
  return rounds;
}

Status JobShards::reserve(PipelineHost& host, const std::vector<pipeline::ShardSpec>& specs) {
  PBOX_CHECK(!running() && !has_reserved() && specs.size() == pipelines_.size());
  std::vector<pipeline::JobShard::Reserved> reserved;
  for (const pipeline::ShardSpec& spec : specs) {
    auto arena = pipeline::JobShard::reserve(spec);
    if (!arena) return arena.error();
    auto prefault = host.prefault(*arena);
    reserved.push_back({std::move(*arena), std::move(prefault)});
  }
  reserved_ = std::move(reserved);
  return ok_status();
}

bool JobShards::is_prefaulting() const {
  return std::any_of(reserved_.begin(), reserved_.end(), [](const auto& memory) {
    return memory.prefault != nullptr && !memory.prefault->is_over();
  });
}

pipeline::JobShard::Reserved JobShards::take_reserved(size_t index) {
  if (index >= reserved_.size()) return {};
  return std::move(reserved_[index]);
}

Status JobShards::allocate_sessions(SpiAllocator& spis,
                                    std::vector<pipeline::ShardSpec>& specs) const {
  PBOX_CHECK(specs.size() == pipelines_.size());  // a session number names its pipeline
  for (uint32_t index = 0; index < specs.size(); ++index) {
    for (auto& session : specs[index].sessions) {
      if (!session.present) continue;
      const auto spi = spis.allocate(pipelines_[index]);
      if (!spi) {
        release_sessions(spis, specs);
        return no_free_session(pipelines_[index]);
      }
      session.spi = *spi;
    }
  }
  return ok_status();
}

void JobShards::release_sessions(SpiAllocator& spis,
                                 const std::vector<pipeline::ShardSpec>& specs) {
  for (const auto& spec : specs) {
    for (const auto& session : spec.sessions) {
      if (session.spi != 0) spis.release(session.spi);
    }
  }
}

Status JobShards::install(PipelineHost& host, Shards shards) {
  // Shards that are still installed would be freed under the pipelines that use them.
  PBOX_CHECK(shards_.empty());
  PBOX_CHECK(shards.size() == pipelines_.size());
  for (uint32_t index = 0; index < shards.size(); ++index) {
    const Status status = host.install(pipelines_[index], *shards[index]);
    if (status) continue;
    for (uint32_t before = 0; before < index; ++before) {
      host.remove(pipelines_[before], std::move(shards[before]));
    }
    return status;
  }
  shards_ = std::move(shards);
  reserved_.clear();
  shares_.assign(shards_.size(), {});
  return ok_status();
}

void JobShards::detach(PipelineHost& host) const {
  for (uint32_t index = 0; index < shards_.size(); ++index) {
    host.execute(pipelines_[index], {.kind = CommandKind::kRemove, .shard = shards_[index].get()});
  }
}

void JobShards::close(PipelineHost& host, SpiAllocator& spis) {
  for (uint32_t index = 0; index < shards_.size(); ++index) {
    std::vector<uint32_t> released;
    for (const auto& session : shards_[index]->sessions()) {
      if (session.present) released.push_back(session.spi);
    }
    host.remove(pipelines_[index], std::move(shards_[index]));
    for (const uint32_t spi : released) spis.release(spi);
  }
  shards_.clear();
}

Status JobShards::admit(PipelineHost& host, SpiAllocator& spis, uint32_t rank, uint32_t generation,
                        const Member& member, const SealMaker& make_seal) {
  PBOX_CHECK(running());  // the session numbers would belong to no shard
  std::vector<uint32_t> fresh;
  std::vector<seal::SessionSeal> seals;
  const auto give_up = [&](const Error& error) -> Status {
    for (const uint32_t taken : fresh) spis.release(taken);
    return error;
  };
  for (uint32_t index = 0; index < shards_.size(); ++index) {
    const auto spi = spis.allocate(pipelines_[index]);
    if (!spi) return give_up(no_free_session(pipelines_[index]));
    fresh.push_back(*spi);
    auto seal = make_seal(index, *spi);
    if (!seal) return give_up(seal.error());
    seals.push_back(std::move(*seal));
  }
  for (uint32_t index = 0; index < shards_.size(); ++index) {
    const pipeline::Session& session = shards_[index]->sessions()[rank];
    const bool was_present = session.present;
    const uint32_t former = session.spi;
    host.execute(pipelines_[index], {.kind = CommandKind::kAdmit,
                                     .shard = shards_[index].get(),
                                     .credit_bytes = session.credit_bytes,
                                     .rank = rank,
                                     .spi = fresh[index],
                                     .generation = static_cast<uint16_t>(generation),
                                     .known_host = member.known_host,
                                     .takes_zeros = member.takes_zeros(),
                                     .seal = &seals[index]});
    if (was_present) spis.release(former);
  }
  return ok_status();
}

void JobShards::exclude(PipelineHost& host, SpiAllocator& spis, uint32_t rank,
                        uint32_t generation) {
  for (uint32_t index = 0; index < shards_.size(); ++index) {
    const uint32_t former = shards_[index]->sessions()[rank].spi;
    host.execute(pipelines_[index], {.kind = CommandKind::kExclude,
                                     .shard = shards_[index].get(),
                                     .rank = rank,
                                     .generation = static_cast<uint16_t>(generation)});
    spis.release(former);
  }
}

void JobShards::set_learning_rate(PipelineHost& host, float learning_rate) {
  for (uint32_t index = 0; index < shards_.size(); ++index) {
    host.execute(pipelines_[index], {.kind = CommandKind::kSetLearningRate,
                                     .shard = shards_[index].get(),
                                     .learning_rate = learning_rate});
  }
}

template <typename Value>
std::vector<std::vector<Value>> JobShards::by_shard(const std::vector<Value>& by_chunk) const {
  PBOX_CHECK(by_chunk.size() == chunk_pipeline_.size());
  std::vector<std::vector<Value>> by_shard(shards_.size());
  for (size_t chunk = 0; chunk < by_chunk.size(); ++chunk) {
    by_shard[chunk_pipeline_[chunk]].push_back(by_chunk[chunk]);
  }
  return by_shard;
}

Status JobShards::change_sync(PipelineHost& host, const SyncChange& change) {
  PBOX_CHECK(running());
  const Status changed = models_.change(change);
  if (changed) set_sync(host);
  return changed;
}

const SyncDecision* JobShards::control_sync(PipelineHost& host, uint64_t now_ns) {
  PBOX_CHECK(running());
  SyncCounts counts;
  for (const auto& shard : shards_) {
    counts.reads += shard->pulls.get();
    counts.delayed += shard->pulls_delayed.get();
    counts.parked_ns += shard->parked_ns.get();
    counts.lead_sum += shard->lead_sum.get();
  }
  if (!models_.observe(counts, now_ns)) return nullptr;
  set_sync(host);
  return models_.newest_decision();
}

// In a job that is not relaxed every tensor is bsp, and stays so.
void JobShards::set_sync(PipelineHost& host) const {
  if (!shards_.front()->is_relaxed()) return;
  const auto rules = by_shard(models_.rules());
  for (uint32_t index = 0; index < shards_.size(); ++index) {
    host.execute(
        pipelines_[index],
        {.kind = CommandKind::kSetSync, .shard = shards_[index].get(), .rules = rules[index]});
  }
}

void JobShards::set_priorities(PipelineHost& host, const std::vector<int32_t>& by_chunk) {
  if (!running()) return;
  const auto by_pipeline = by_shard(by_chunk);
  for (uint32_t index = 0; index < shards_.size(); ++index) {
    host.execute(pipelines_[index], {.kind = CommandKind::kSetPriorities,
                                     .shard = shards_[index].get(),
                                     .priorities = by_pipeline[index]});
  }
}

void JobShards::set_credit(PipelineHost& host, uint32_t pipeline, uint32_t credit_bytes,
                           uint32_t weight) {
  const auto found = std::find(pipelines_.begin(), pipelines_.end(), pipeline);
  if (!running() || found == pipelines_.end()) return;
  const auto index = static_cast<size_t>(found - pipelines_.begin());
  const Share share{credit_bytes, weight};
  if (shares_[index] == share) return;
  shares_[index] = share;
  host.execute(pipeline, {.kind = CommandKind::kSetCredit,
                          .shard = shards_[index].get(),
                          .credit_bytes = credit_bytes,
                          .weight = weight});
}

uint32_t JobShards::credit_on(uint32_t pipeline) const {
  const auto found = std::find(pipelines_.begin(), pipelines_.end(), pipeline);
  PBOX_CHECK(running() && found != pipelines_.end());
  const uint32_t credit = shares_[static_cast<size_t>(found - pipelines_.begin())].credit_bytes;
  PBOX_CHECK(credit > 0);  // share_credit() runs before a session is sent to its rank
  return credit;
}

std::vector<uint32_t> JobShards::open_rounds(PipelineHost& host, uint32_t rank) const {
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

std::vector<RelayLane> JobShards::lanes(PipelineHost& host) const {
  std::vector<RelayLane> lanes;
  for (uint32_t index = 0; index < shards_.size(); ++index) {
    const uint32_t pipeline = pipelines_[index];
    const auto& uplinks = shards_[index]->uplinks;
    const NumaArena& arena = shards_[index]->arena();
    for (uint32_t lane = 0; lane < uplinks.size(); ++lane) {
      lanes.push_back({lane,
                       uplinks[lane].get(),
                       [&host, pipeline] { host.wake(pipeline); },
                       {arena.data(), arena.size()}});
    }
  }
  return lanes;
}

}  // namespace pbox::control
