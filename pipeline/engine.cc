#include "pipeline/engine.h"

#include <algorithm>

#include "pipeline/state/state_cut.h"

namespace pbox::pipeline {
namespace {

// By one command: some milliseconds at most, for chunks of a usual size.
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
      if (shard.cut != nullptr) shard.cut->look(shard, kCopiesPerCut);
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
  SessionEntry& entry = sessions_[wire::spi_index(session.spi)];
  PBOX_CHECK(entry.session == nullptr && spi_pipeline(session.spi) == options_.pipeline_index);
  session.resend_budget_bytes = 4 * int64_t{session.credit_bytes};
  entry = {session.spi, &shard, &session};
}

// Nothing is known of where the rank is now until it has been heard. Packets already made for it
// go to where it was.
void Engine::admit(JobShard& shard, const Command& command) {
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
  Session& session = shard.sessions()[command.rank];
  if (!session.present) return;
  sessions_[wire::spi_index(session.spi)] = {};
  shard.set_present(session, false);
  shard.generation = command.generation;
  for (Chunk& chunk : shard.chunks()) PBOX_CHECK(chunk.copy_rank != command.rank);
  if (shard.sync.model != wire::SyncModel::kBsp) leave(shard, command.rank);
  finish_complete_rounds(shard);
}

// A round that had everything but an excluded rank's part is finished by the exclusion; one that
// had all of a rank's part when everybody was gone, by that rank's return. Whoever has pushed a
// round in full holds the result of the one before, so what is still to leave of that is void.
void Engine::finish_complete_rounds(JobShard& shard) {
  // Where sums are relayed nobody is excluded, and what is complete is under way.
  if (shard.present_count() == 0 || shard.uplink != nullptr) return;
  for (Chunk& chunk : shard.chunks()) {
    if (chunk.complete_workers < shard.workers_needed(chunk)) continue;
    shard.stragglers.ended(shard.index_of(chunk));
    end_round(shard, chunk);
  }
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
  const uint64_t first_ns = any ? shard.stragglers.first_arrival_ns(oldest) : 0;
  const uint64_t waited_ns = now_ns > first_ns ? now_ns - first_ns : 1;  // 0 says: not at all
  for (Session& session : shard.sessions()) {
    const Chunk* chunk = any && session.present ? &shard.chunks()[oldest] : nullptr;
    if (chunk == nullptr || chunk->claimed[session.rank] == chunk->full_mask) {
      session.awaited_ns.set(0);
      continue;
    }
    session.awaited_chunk_round.set(uint64_t{chunk->id} << 32 | chunk->open_round());
    session.awaited_ns.set(waited_ns);
  }
}

void Engine::remove(JobShard& shard) {
  if (std::erase(shards_, &shard) > 0 && shard.uplink != nullptr) --relayed_shards_;
  note_tracing();
  next_shard_ = 0;
  for (const Session& session : shard.sessions()) {
    if (session.present) sessions_[wire::spi_index(session.spi)] = {};
  }
  // Packets made but not sent, and replies that wait, may point into the shard's memory. They are
  // few, and every one of them is covered by a worker's timer: drop them all.
  outgoing_begin_ = outgoing_end_ = 0;
  reply_head_ = reply_tail_ = 0;
}

}  // namespace pbox::pipeline
