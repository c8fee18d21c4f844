// Parts in mode optimize that another box has a copy of (replicas = 1): the backup box. Each
// chunk's weights and optimizer state go there after each round, and are there before any rank is
// given the result; so the box that takes the part over, when this one is lost, has from the copy
// all that any rank can have seen. A copy is made with the part's opening, and is of that opening
// alone: a part whose backup box is lost is opened anew, here, with another.
#include <algorithm>

#include "appliance/control/job_registry.h"
#include "base/clock.h"
#include "base/rng.h"
#include "pipeline/state/state_codec.h"

namespace pbox::appliance {
namespace {

using Severity = RegistryEvent::Severity;

// The ranks wait meanwhile.
constexpr uint64_t kJoinBackupNs = 2 * kNanosPerSecond;
// A part without a copy looks for a box that would have one, at first so often.
constexpr uint64_t kLookAgainNs = 2 * kNanosPerSecond;
constexpr uint64_t kLookAgainMaxNs = 64 * kNanosPerSecond;
// A box that starts again registers within this.
constexpr uint64_t kAbsentNs = 2 * kNanosPerSecond;

std::string hex(uint64_t number) {
  std::string digits(16, '0');
  for (size_t digit = 16; digit-- > 0; number >>= 4)
    digits[digit] = "0123456789abcdef"[number & 15];
  return digits;
}

}  // namespace

Status check_replicas(const JobSpec& spec) {
  const auto refuse = [&](const std::string& why) {
    return Error{ErrorCode::kInvalidArgument, spec.title() + ": replicas 1 " + why};
  };
  if (spec.mode != pipeline::Mode::kOptimize) {
    return refuse(
        "is of mode optimize: sums are made again from what the ranks have; set replicas 0");
  }
  if (spec.sync.model != wire::SyncModel::kBsp || spec.recovery != Recovery::kCopy) {
    return refuse("needs sync model bsp and recovery copy: other jobs do not outlive their box");
  }
  if (spec.on_worker_lost == LostPolicy::kPartial) {
    return refuse("cannot say who is in a result; set on_worker_lost wait or abort");
  }
  constexpr size_t kChunksMax = limits::kTensorsPerJobMax - kTensorsBesideChunks;
  if (const size_t chunks = cut_into_chunks(spec).size(); chunks > kChunksMax) {
    std::string why = "is of at most ";
    why.append(std::to_string(kChunksMax)).append(" chunks, these are ");
    why.append(std::to_string(chunks)).append("; raise chunk_bytes");
    return refuse(why);
  }
  return ok_status();
}

// Never used before, by any box: the copy of one opening is not to be taken for another's.
// "train#3~5f1c...": of part 3.
std::string JobRegistry::name_of_copy(const JobSpec& spec) {
  std::string end = "#";
  end.append(std::to_string(spec.part))
      .append("~")
      .append(hex(Rng(options_.seed + ++copies_named_).next()));
  return spec.name.substr(0, limits::kJobNameBytesMax - end.size()) + end;
}

RelaySpec Job::backup_spec(const std::string& name) const {
  RelaySpec relay = relay_spec();
  relay.job = name;
  relay.workers = 1;
  relay.numerics = wire::Numerics::kFast;
  relay.is_backup = true;
  relay.join_timeout_ns = kJoinBackupNs;
  for (RelayedChunk& chunk : relay.chunks) {
    const auto block = pipeline::StateLayout::block(spec_.optimizer.kind, chunk.elements);
    chunk.elements = static_cast<uint32_t>(block.floats);
  }
  return relay;
}

// True while the ranks wait for it: until it is joined, and has what the part begins with.
bool JobRegistry::awaits_backup(Job& job, const PartState* state) {
  Backup& backup = job.backup;
  if (job.spec().replicas == 0 || backup.is_given_up) return false;
  const uint32_t begins_from = state == nullptr ? 0 : state->epoch;
  if (job.relay && backup.seeded_epoch != 0 && backup.seeded_epoch != begins_from) {
    job.relay.reset();  // it has what the part does not begin with after all
    --backup.tried;
  }
  if (job.relay == nullptr) return join_backup(job);
  if (!backup.is_joined) return true;
  if (state != nullptr && backup.seeded_epoch == 0) {
    backup.seeded_epoch = begins_from;
    backup.is_seeding = true;
    job.relay->seed(job.backup_blocks(*state));
  }
  return backup.is_seeding;
}

std::vector<std::vector<float>> Job::backup_blocks(const PartState& state) const {
  const auto chunks = cut_into_chunks(spec_);
  std::vector<std::vector<float>> blocks(chunks.size());
  for (const pipeline::ChunkState& chunk : state.chunks) {
    blocks[chunk.chunk] =
        pipeline::encode_block(chunk, spec_.optimizer.kind, chunks[chunk.chunk].elements);
  }
  return blocks;
}

// False: no box is left to be asked.
bool JobRegistry::join_backup(Job& job) {
  Backup& backup = job.backup;
  const auto boxes = parts_.backup_candidates(job.spec().name, job.spec().part);
  const size_t tried = backup.tried;
  backup = {.tried = tried + 1};
  if (tried >= boxes.size()) {
    backup.is_given_up = true;
    note(Severity::kWarning, "backup_missing",
         job.spec().title() +
             ": no other box can have a copy of its weights and optimizer state (" +
             std::to_string(boxes.size()) +
             " asked); it begins without, and gets one once a box is there");
    return false;
  }
  backup.box = boxes[tried].box();
  backup.job = name_of_copy(job.spec());
  job.relay_number = ++questions_;
  job.relay = join_box(job, boxes[tried], backup.job, job.relay_number);
  return true;
}

std::unique_ptr<Relay> JobRegistry::join_box(const Job& job, const proto::PartPlace& place,
                                             const std::string& name, uint64_t number) {
  return backups_->join(
      place.address(), job.backup_spec(name),
      [this, alive = alive_, part = key(job.spec()), number](const Status& status) {
        if (*alive) on_backup(part, number, status);
      });
}

// It has joined, or has what the part begins with; or what it fails of.
void JobRegistry::on_backup(const JobKey& part, uint64_t number, const Status& status) {
  const auto found = jobs_.find(part);
  if (found == jobs_.end()) return;
  Job& job = *found->second;
  if (job.backup.probe && job.backup.probe_number == number) return on_probe(job, status);
  if (job.relay == nullptr || job.relay_number != number) return;
  if (status) {
    if (job.backup.is_joined) job.backup.is_seeding = false;
    job.backup.is_joined = true;
    if (!job.running() && job.all_joined()) start_job(job);
    return;
  }
  if (job.running()) return lose_backup(job, "does not answer (" + status.error().message + ")");
  job.relay.reset();
  note(Severity::kWarning, "backup_refused",
       job.spec().title() + ": box " + job.backup.box +
           " cannot have a copy of it: " + status.error().message);
  job.backup = {.tried = job.backup.tried};
  if (job.all_joined()) start_job(job);
}

void JobRegistry::lose_backup(Job& job, const std::string& why) {
  job.relay.reset();
  ++totals_.backups_lost;
  gather_again(job, pipeline::kNoRank, now_ns_, "backup_lost",
               job.spec().title() + ": box " + job.backup.box + ", which has a copy of it, " + why +
                   "; its ranks come together again here, and another box gets one");
}

// A part that runs: is the box still there that has its copy, and is there one where none has?
void JobRegistry::tick_backup(Job& job) {
  if (job.relay) {
    look_after_backup(job);
  } else {
    look_for_backup(job);
  }
}

// One that was cut off is not waited for until it counts as silent, and one that drains is to be
// empty: if there is another.
void JobRegistry::look_after_backup(Job& job) {
  Backup& backup = job.backup;
  const auto boxes = parts_.backup_candidates(job.spec().name, job.spec().part);
  const bool is_there =
      boxes.empty() || std::any_of(boxes.begin(), boxes.end(),
                                   [&](const auto& place) { return place.box() == backup.box; });
  if (is_there) {
    backup.absent_since_ns = 0;
  } else if (backup.absent_since_ns == 0) {
    backup.absent_since_ns = now_ns_;
  } else if (now_ns_ - backup.absent_since_ns >= kAbsentNs) {
    lose_backup(job, "is not registered any more, or drains");
  }
}

// Only once one has been joined the ranks are called together.
void JobRegistry::look_for_backup(Job& job) {
  Backup& backup = job.backup;
  if (backup.probe || now_ns_ < backup.look_due_ns) return;
  const auto boxes = parts_.backup_candidates(job.spec().name, job.spec().part);
  backup.look_due_ns = now_ns_ + kLookAgainNs;
  if (boxes.empty()) return;
  const auto& place = boxes[backup.tried++ % boxes.size()];
  backup.box = place.box();
  backup.probe_number = ++questions_;
  backup.probe = join_box(job, place, name_of_copy(job.spec()), backup.probe_number);
}

void JobRegistry::on_probe(Job& job, const Status& status) {
  Backup& backup = job.backup;
  backup.probe.reset();
  if (status) {
    gather_again(job, pipeline::kNoRank, now_ns_, "backup_found",
                 job.spec().title() + ": box " + backup.box +
                     " can have a copy of it; its ranks come together again here for that");
    return;
  }
  const uint64_t waited_ns = std::max(backup.look_interval_ns, kLookAgainNs);
  backup.look_interval_ns = std::min(2 * waited_ns, kLookAgainMaxNs);
  backup.look_due_ns = now_ns_ + backup.look_interval_ns;
  note(Severity::kWarning, "backup_refused",
       job.spec().title() + ": box " + backup.box +
           " cannot have a copy of it: " + status.error().message);
}

// What this box has of another's part, before it is closed: as it was after the last push that was
// whole. Nobody may ask for it for a while.
void JobRegistry::keep_copy(Job& job) {
  if (!job.spec().is_backup || !job.running()) return;
  PartState copy = job.take_copy(host_);
  if (!copy.chunks.empty()) keep(job, std::move(copy), true, {});
}

// A tensor is a chunk of the part, in blocks of f32, and may be cut into several chunks here. The
// box that pushed it may have been lost in the middle: then some of these have a round more than
// others, but both rounds' results are here.
PartState Job::take_copy(PipelineHost& host) {
  PartState copy;
  for (uint32_t index = 0; index < shards_.size(); ++index) {
    host.execute(pipelines_[index],
                 {.kind = pipeline::CommandKind::kRemove, .shard = shards_[index].get()});
  }
  uint32_t next = 0;
  std::vector<float> block;
  const std::vector<uint32_t> counts = chunk_counts();
  for (uint32_t tensor = 0; tensor < counts.size(); ++tensor) {
    std::vector<const pipeline::Chunk*> chunks;
    uint64_t rounds = UINT64_MAX;
    for (uint32_t end = next + counts[tensor]; next < end; ++next) {
      chunks.push_back(shards_[chunk_pipeline_[next]]->find(next));
      rounds = std::min(rounds, chunks.back()->rounds_finished);
    }
    if (tensor < kTensorsBesideChunks || rounds == 0) continue;
    block.clear();
    for (const pipeline::Chunk* chunk : chunks) {
      const auto* values = reinterpret_cast<const float*>(chunk->result[(rounds - 1) & 1]);
      block.insert(block.end(), values, values + chunk->elements);
    }
    if (auto state = pipeline::decode_block(block, tensor - kTensorsBesideChunks)) {
      copy.chunks.push_back(std::move(*state));
    }
  }
  return copy;
}

// A copy that nobody will need.
void JobRegistry::forget_copy(const CopyName& copy) {
  if (copy.job.empty()) return;
  tell_taken({.box = copy.box, .job = copy.job, .part = 0, .epoch = 0, .is_backup = true});
}

}  // namespace pbox::appliance
