#include "tests/sim/egress_check.h"

#include <algorithm>

#include "tests/sim/violation.h"

namespace pbox::sim {
namespace {

constexpr int64_t kNone = INT64_MIN;

// Returns the priority of the shard's next first copy; kNone if none waits.
int64_t next_priority(const pipeline::JobShard& shard) {
  const auto& cursor = shard.egress.cursor;
  const pipeline::FanOut* top = shard.egress.top();
  const int64_t under_way = cursor.count > 0 ? cursor.group[0].place.priority : kNone;
  return top == nullptr ? under_way : std::max<int64_t>(under_way, top->place.priority);
}

}  // namespace

void EgressCheck::add(pipeline::JobShard& shard) {
  auto job = std::find_if(jobs_.begin(), jobs_.end(),
                          [&](const Job& one) { return one.name == shard.name; });
  if (job == jobs_.end()) job = jobs_.insert(job, Job{.name = std::string(shard.name)});
  job->parts.push_back({.shard = &shard});
}

void EgressCheck::remove(const pipeline::JobShard& shard) {
  for (Job& job : jobs_) {
    std::erase_if(job.parts, [&](const Part& part) { return part.shard == &shard; });
    if (job.oldest && job.oldest->shard == &shard) job.oldest.reset();
  }
  std::erase_if(jobs_, [](const Job& job) { return job.parts.empty(); });
}

void EgressCheck::name(const pipeline::JobShard& shard, const JobModel& model) {
  const JobOptions& options = model.options;
  for (Job& job : jobs_) {
    for (Part& part : job.parts) {
      if (part.shard != &shard) continue;
      part.is_ordered = !options.is_relaxed() && !options.is_collective && !options.rogue &&
                        options.delivery == wire::Delivery::kBroadcast &&
                        options.priority_policy != wire::PriorityPolicy::kForwardOrder &&
                        !model.may_lack_ranks();
    }
  }
}

void EgressCheck::offered(std::span<const nic::TxPacket> packets, size_t taken) {
  const bool is_new = left_over_ == 0 || packets.size() != left_over_;
  left_over_ = packets.size() - taken;
  if (!is_new || packets.empty()) return;
  for (Job& job : jobs_) {
    const auto oldest = oldest_of(job);
    const auto is_ordered = [](const Part& part) { return part.is_ordered; };
    const bool has_parts = std::count_if(job.parts.begin(), job.parts.end(), is_ordered) > 1;
    if (!has_parts && !job.oldest && !oldest) continue;
    const std::vector<Sent> results = results_of(job, packets);
    check_oldest(job, results);
    if (has_parts) check_first_copies(job, results);
    if (std::all_of(job.parts.begin(), job.parts.end(), is_ordered)) check_resends(job, results);
    job.oldest = oldest;
  }
}

void EgressCheck::note_first_copy(Part& part, uint32_t rank, const pipeline::Chunk& chunk) {
  if (part.rank == rank && part.chunk == chunk.id) return;
  const int32_t before = part.rank == rank ? part.own_priority : chunk.priority;
  part.priority = std::max(before, chunk.priority);
  part.own_priority = chunk.priority;
  part.rank = rank;
  part.chunk = chunk.id;
}

std::vector<EgressCheck::Sent> EgressCheck::results_of(Job& job,
                                                       std::span<const nic::TxPacket> packets) {
  std::vector<Sent> results;
  for (const nic::TxPacket& packet : packets) {
    const wire::Header& header = packet.header;
    const bool is_result =
        header.type() == wire::PacketType::kResult || header.type() == wire::PacketType::kZeros;
    if (!is_result) continue;
    for (size_t index = 0; index < job.parts.size(); ++index) {
      Part& part = job.parts[index];
      const auto& sessions = part.shard->sessions();
      const auto session = std::find_if(sessions.begin(), sessions.end(), [&](const auto& one) {
        return (one.spi | wire::kSpiToWorker) == header.spi;
      });
      if (session == sessions.end()) continue;
      const pipeline::Chunk* chunk = part.shard->find(header.chunk);
      if (chunk == nullptr) break;
      Sent sent{.part = index,
                .chunk = chunk->id,
                .rank = session->rank,
                .is_resend = (header.flags & wire::flag::kRetransmission) != 0,
                .own_priority = chunk->priority,
                .priority = chunk->priority};
      if (!sent.is_resend) {
        note_first_copy(part, session->rank, *chunk);
        sent.priority = part.priority;
      }
      results.push_back(sent);
      break;
    }
  }
  return results;
}

// Checks that no part sends a first copy while another part has a more urgent one. Results that
// leave later in the burst, or are left over, were waiting when the first packet was made. A part
// finishes a group that it has begun for a worker before it sends anything else.
void EgressCheck::check_first_copies(const Job& job, const std::vector<Sent>& results) {
  std::vector<int64_t> waiting;
  for (const Part& part : job.parts) {
    waiting.push_back(part.is_ordered ? next_priority(*part.shard) : kNone);
  }
  for (auto sent = results.rbegin(); sent != results.rend(); ++sent) {
    if (sent->is_resend || !job.parts[sent->part].is_ordered) continue;
    for (size_t other = 0; other < waiting.size(); ++other) {
      const bool is_right =
          waiting[other] <= std::max<int64_t>(sent->priority, waiting[sent->part]);
      require(is_right, [&] {
        return "egress: " + job.name + " sends a result of part " +
               std::to_string(job.parts[sent->part].shard->part) + " of priority " +
               std::to_string(sent->own_priority) + " while one of part " +
               std::to_string(job.parts[other].shard->part) + " of priority " +
               std::to_string(waiting[other]) + " waits";
      });
    }
    waiting[sent->part] = std::max<int64_t>(waiting[sent->part], sent->own_priority);
  }
}

void EgressCheck::check_resends(const Job& job, const std::vector<Sent>& results) {
  // The job sends its oldest resend in each of its turns. A burst is smaller than two turns, so its
  // packets belong to three turns at most.
  constexpr size_t kOldestMax = 3;
  int64_t waiting = kNone;
  for (const Part& part : job.parts) waiting = std::max(waiting, next_priority(*part.shard));
  size_t early = 0;
  for (auto sent = results.rbegin(); sent != results.rend(); ++sent) {
    if (!sent->is_resend) {
      waiting = std::max<int64_t>(waiting, sent->own_priority);
    } else if (sent->own_priority < waiting) {
      ++early;
    }
  }
  require(early <= kOldestMax, [&] {
    return "egress: " + job.name + " sends " + std::to_string(early) +
           " resends before first copies that are more urgent";
  });
}

std::optional<EgressCheck::Resend> EgressCheck::oldest_of(const Job& job) {
  std::optional<Resend> oldest;
  for (const Part& part : job.parts) {
    const pipeline::Answer* one = part.shard->egress.oldest_resend();
    if (one == nullptr || (oldest && oldest->sequence < one->place.sequence)) continue;
    oldest = {part.shard, one->chunk->id, one->rank, one->place.sequence, one->mask};
  }
  return oldest;
}

// Checks that a turn of the job with room for two packets sends a packet of the job's oldest
// resend. The resend's mask need not show that, because the rank may have asked again in between.
void EgressCheck::check_oldest(Job& job, const std::vector<Sent>& results) {
  if (!job.oldest || results.size() < 2) return;
  const pipeline::Answer* still = job.oldest->shard->egress.oldest_resend();
  const auto is_of_it = [&](const Sent& sent) {
    return sent.is_resend && sent.chunk == job.oldest->chunk && sent.rank == job.oldest->rank &&
           job.parts[sent.part].shard == job.oldest->shard;
  };
  const bool is_served = still == nullptr || still->place.sequence != job.oldest->sequence ||
                         still->mask != job.oldest->mask ||
                         std::any_of(results.begin(), results.end(), is_of_it);
  require(is_served, [&] {
    return "egress: " + job.name + " sends " + std::to_string(results.size()) +
           " results, but none of its oldest resend";
  });
}

}  // namespace pbox::sim
