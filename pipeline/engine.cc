// Commands of the control thread, and the tick.
#include "pipeline/engine.h"

#include <algorithm>

#include "pipeline/round_tracing.h"
#include "pipeline/state/state_cut.h"

namespace pbox::pipeline {
namespace {

// Chunks that one kCut command copies: a few milliseconds at most, for chunks of a usual size.
constexpr uint32_t kCopiesPerCut = 64;

}  // namespace

Engine::Engine(const EngineOptions& options)
    : kernels_(reduce::kernels()),
      pipeline_index_(options.pipeline_index),
      flight_(options.flight, context_),
      egress_(context_, flight_) {
  context_.tag = options.tag;
  context_.shards.reserve(limits::kJobsMax);
}

void Engine::execute(const Command& command) {
  carry_out(command);
  flight_.record_command(command);
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
      egress_.send_grants(shard);
      return;
    case CommandKind::kAdmit: admit(shard, command); return;
    case CommandKind::kExclude: exclude(shard, command); return;
    case CommandKind::kTrace:
      set_trace(shard, command.trace);
      tracing_ = is_any_traced(context_);
      return;
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
  PBOX_CHECK(context_.shards.size() < limits::kJobsMax);
  context_.shards.push_back(&shard);
  shard.flight_number = flight_.next_shard_number();
  if (shard.uplink != nullptr) ++relayed_shards_;
  shard.parked_changed_ns = context_.now_ns;
  for (Session& session : shard.sessions()) {
    if (session.present) connect(shard, session);
  }
}

void Engine::connect(JobShard& shard, Session& session) {
  PBOX_DCHECK(session.rank < shard.worker_count());
  SessionEntry& entry = context_.sessions.at(session.spi);
  PBOX_CHECK(entry.session == nullptr && spi_pipeline(session.spi) == pipeline_index_);
  session.fill_resend_budget();
  entry = {session.spi, &shard, &session};
}

// The rank's address is unknown until its first packet arrives. Packets already made for it go to
// its former address.
void Engine::admit(JobShard& shard, const Command& command) {
  PBOX_CHECK(command.rank < shard.worker_count());
  Session& session = shard.sessions()[command.rank];
  PBOX_CHECK(shard.sync.model == wire::SyncModel::kBsp || session.present);
  if (session.present) context_.sessions.at(session.spi) = {};
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
  context_.sessions.at(session.spi) = {};
  shard.set_present(session, false);
  shard.generation = command.generation;
  for (Chunk& chunk : shard.chunks()) PBOX_CHECK(chunk.copy_rank != command.rank);
  if (shard.sync.model != wire::SyncModel::kBsp) drop_rank(shard, command.rank);
  finish_complete_rounds(shard);
}

void Engine::take_tick(uint64_t now_ns) {
  context_.now_ns = now_ns;
  context_.counters.add(Counter::kTicks);
  size_t queued = 0;
  for (JobShard* shard : context_.shards) {
    note_awaited(*shard, now_ns);
    queued += shard->egress.size();
  }
  context_.counters.set(Counter::kQueuedChunks, queued);
  if (!tracing_) return;
  end_traces(context_);
  tracing_ = is_any_traced(context_);
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
  PBOX_DCHECK(relayed_shards_ <= context_.shards.size());
  if (std::erase(context_.shards, &shard) > 0 && shard.uplink != nullptr) --relayed_shards_;
  PBOX_DCHECK(relayed_shards_ <= context_.shards.size());
  tracing_ = is_any_traced(context_);
  for (const Session& session : shard.sessions()) {
    if (session.present) context_.sessions.at(session.spi) = {};
  }
  egress_.drop_all();
}

}  // namespace pbox::pipeline
