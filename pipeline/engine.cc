// Commands of the control thread, and the tick.
#include "pipeline/engine.h"

#include <algorithm>

#include "pipeline/state/state_cut.h"

namespace pbox::pipeline {
namespace {

// Chunks that one kCut command copies: a few milliseconds at most, for chunks of a usual size.
constexpr uint32_t kCopiesPerCut = 64;

}  // namespace

Engine::Engine(const EngineOptions& options)
    : options_(options),
      kernels_(reduce::kernels()),
      sessions_(limits::kSessionsPerPipelineMax),
      flight_(options.flight),
      next_state_(options.flight.empty() ? UINT64_MAX : 0),
      replies_(kReplyCapacity) {
  shards_.reserve(limits::kJobsMax);
}

void Engine::execute(const Command& command) {
  carry_out(command);
  record_command(command);
}

void Engine::carry_out(const Command& command) {
  JobShard& shard = *command.shard;
  switch (command.kind) {
    case CommandKind::kInstall: install(shard); return;
    case CommandKind::kRemove: remove(shard); return;
    case CommandKind::kSetLearningRate:
      shard.optimizer.learning_rate = command.learning_rate;
      return;
    case CommandKind::kSetPriorities:
      PBOX_CHECK(command.priorities.size() == shard.chunks().size());
      for (size_t index = 0; index < command.priorities.size(); ++index) {
        shard.chunks()[index].priority = command.priorities[index];
      }
      return;
    case CommandKind::kSetCredit:
      for (Session& session : shard.sessions()) session.credit_bytes = command.credit_bytes;
      send_grants(shard);
      return;
    case CommandKind::kAdmit: admit(shard, command); return;
    case CommandKind::kExclude: exclude(shard, command); return;
    case CommandKind::kTrace: set_trace(shard, command.trace); return;
    case CommandKind::kCut:
      shard.cut = command.cut;
      if (shard.cut != nullptr) shard.cut->copy_resting(shard, kCopiesPerCut);
      return;
    case CommandKind::kReportRounds:
      PBOX_CHECK(command.rounds.size() == shard.chunks().size());
      for (size_t index = 0; index < command.rounds.size(); ++index) {
        command.rounds[index] = shard.chunks()[index].next_round(command.rank);
      }
      return;
  }
}

void Engine::install(JobShard& shard) {
  PBOX_CHECK(shards_.size() < limits::kJobsMax);
  shards_.push_back(&shard);
  shard.flight_number = ++flight_numbers_;
  if (shard.uplink != nullptr) ++relayed_shards_;
  shard.parked_changed_ns = now_ns_;
  for (Session& session : shard.sessions()) {
    if (session.present) connect(shard, session);
  }
}

void Engine::connect(JobShard& shard, Session& session) {
  PBOX_DCHECK(session.rank < shard.worker_count());
  SessionEntry& entry = sessions_[wire::spi_index(session.spi)];
  PBOX_CHECK(entry.session == nullptr && spi_pipeline(session.spi) == options_.pipeline_index);
  session.resend_budget_bytes = 4 * int64_t{session.credit_bytes};
  entry = {session.spi, &shard, &session};
}

// The rank's address is unknown until its first packet arrives. Packets already made for it go to
// its former address.
void Engine::admit(JobShard& shard, const Command& command) {
  PBOX_CHECK(command.rank < shard.worker_count());
  Session& session = shard.sessions()[command.rank];
  PBOX_CHECK(shard.sync.model == wire::SyncModel::kBsp || session.present);
  if (session.present) sessions_[wire::spi_index(session.spi)] = {};
  session.spi = command.spi;
  session.credit_bytes = command.credit_bytes;
  session.reachable = false;
  session.newest_packet_number = 0;
  session.next_packet_number = 1;
  connect(shard, session);
  shard.set_present(session, true);
  shard.generation = command.generation;
  finish_complete_rounds(shard);
}

void Engine::exclude(JobShard& shard, const Command& command) {
  PBOX_CHECK(command.rank < shard.worker_count());
  Session& session = shard.sessions()[command.rank];
  if (!session.present) return;
  sessions_[wire::spi_index(session.spi)] = {};
  shard.set_present(session, false);
  shard.generation = command.generation;
  for (Chunk& chunk : shard.chunks()) PBOX_CHECK(chunk.copy_rank != command.rank);
  if (shard.sync.model != wire::SyncModel::kBsp) drop_rank(shard, command.rank);
  finish_complete_rounds(shard);
}

void Engine::take_tick(uint64_t now_ns) {
  now_ns_ = now_ns;
  counters_.add(Counter::kTicks);
  size_t queued = 0;
  for (JobShard* shard : shards_) {
    note_awaited(*shard, now_ns);
    queued += shard->egress.size();
  }
  counters_.set(Counter::kQueuedChunks, queued);
  if (tracing_) end_traces(now_ns);
}

void Engine::note_awaited(JobShard& shard, uint64_t now_ns) {
  const uint32_t oldest = shard.stragglers.oldest();
  const bool any = oldest != StragglerLedger::kNone;
  PBOX_DCHECK(!any || oldest < shard.chunk_count());
  const uint64_t first_ns = any ? shard.stragglers.first_arrival_ns(oldest) : 0;
  const uint64_t waited_ns = now_ns > first_ns ? now_ns - first_ns : 1;  // 0: nobody waits
  for (Session& session : shard.sessions()) {
    const Chunk* chunk = any && session.present ? &shard.chunks()[oldest] : nullptr;
    if (chunk == nullptr || chunk->claimed[session.rank] == chunk->full_mask) {
      session.awaited_ns.set(0);
      continue;
    }
    PBOX_DCHECK((chunk->claimed[session.rank] & ~chunk->full_mask) == 0);
    session.awaited_chunk_round.set(uint64_t{chunk->id} << 32 | chunk->open_round());
    session.awaited_ns.set(waited_ns);
  }
}

void Engine::remove(JobShard& shard) {
  PBOX_DCHECK(relayed_shards_ <= shards_.size());
  if (std::erase(shards_, &shard) > 0 && shard.uplink != nullptr) --relayed_shards_;
  note_tracing();
  next_shard_ = 0;
  for (const Session& session : shard.sessions()) {
    if (session.present) sessions_[wire::spi_index(session.spi)] = {};
  }
  // Packets that were made but not sent, and replies in the queue, may point into the shard's
  // memory. Drop them all: they are few, and a worker's timer covers every one of them.
  outgoing_begin_ = outgoing_end_ = 0;
  reply_head_ = reply_tail_ = 0;
}

}  // namespace pbox::pipeline
