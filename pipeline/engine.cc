// Commands of the control thread, and the tick.
//
// A command that concerns every chunk is carried out in steps, between which packets of all shards
// are received and sent. While a change of the membership is under way, packets of its own shard
// are rejected. Its workers learn the new generation only afterwards.
#include "pipeline/engine.h"

#include <algorithm>
#include <utility>

#include "pipeline/late_ranks.h"
#include "pipeline/result_form.h"
#include "pipeline/round_tracing.h"
#include "pipeline/state/state_cut.h"

namespace pbox::pipeline {
namespace {

// Adds the session's key updates since the last call to the counters. Called on each tick, and
// before the session's seal is replaced or given back.
void count_key_updates(Counters& counters, Session& session) {
  const uint64_t sent = session.seal.updates_sent();
  const uint64_t received = session.seal.updates_received();
  counters.add(Counter::kKeyUpdatesBegun, sent - session.counted_updates_sent);
  counters.add(Counter::kKeyUpdatesFollowed, received - session.counted_updates_received);
  session.counted_updates_sent = sent;
  session.counted_updates_received = received;
}

// Model `drop`: when a session ends in the middle of a late push, the rest of the push never comes.
// The push counts as complete, so that no answer waits for the rest. The new session may belong to
// a new process, which has no weights.
void forget_late_push(const JobShard& shard, Chunk& chunk, uint32_t rank) {
  PBOX_DCHECK(chunk.sync != nullptr && chunk.sync->pushed != nullptr);
  const bool is_closed = waits_for_copy(chunk) && gives_deltas(chunk);
  chunk.sync->pushed[rank].mask = is_closed ? delta_mask(shard, chunk) : chunk.full_mask;
  chunk.sync->pushed[rank].lacks_weights = true;
  chunk.sync->forget_cut_short(rank);
}

// Updates each session's keys, and how long the other ranks have waited for its rank.
void tick_sessions(Counters& counters, JobShard& shard, uint64_t now_ns) {
  const uint32_t oldest = shard.stragglers.oldest();
  const bool any = oldest != StragglerLedger::kNone;
  PBOX_DCHECK(!any || oldest < shard.chunk_count());
  const uint64_t first_ns = any ? shard.stragglers.first_arrival_ns(oldest) : 0;
  // At least 1, because 0 means that no rank waits.
  const uint64_t waited_ns = now_ns > first_ns ? now_ns - first_ns : 1;
  for (Session& session : shard.sessions()) {
    session.seal.tick(now_ns);
    count_key_updates(counters, session);
    const Chunk* chunk = any && session.present ? &shard.chunks()[oldest] : nullptr;
    if (chunk == nullptr || has_pushed_open_round(*chunk, session.rank)) {
      session.awaited_ns.set(0);
      continue;
    }
    PBOX_DCHECK((chunk->claimed[session.rank] & ~chunk->full_mask) == 0);
    session.awaited_chunk_round.set(uint64_t{chunk->id} << 32 | chunk->open_round());
    session.awaited_ns.set(waited_ns);
  }
}

}  // namespace

Engine::Engine(const EngineOptions& options)
    : kernels_(reduce::kernels()),
      pipeline_index_(options.pipeline_index),
      draw_(options.draw),
      flight_(options.flight, context_),
      egress_(context_, flight_) {
  PBOX_CHECK(draw_ != nullptr);
  context_.tag = options.tag;
  context_.shards.reserve(limits::kShardsPerPipelineMax);
}

bool Engine::step(Command& command) {
  PBOX_DCHECK(command.shard != nullptr);
  if (command.chunks_done > 0) return walk(command);
  const bool walks = begin(command);
  const bool is_complete = !walks || walk(command);
  flight_.record_command(command);
  return is_complete;
}

// Carries out the part of a command that concerns the shard as a whole. Returns true if walk() has
// to carry out the rest, chunk by chunk.
bool Engine::begin(Command& command) {
  JobShard& shard = *command.shard;
  switch (command.kind) {
    case CommandKind::kInstall: install(shard); return false;
    case CommandKind::kRemove: remove(shard); return false;
    case CommandKind::kSetLearningRate:
      shard.optimizer.learning_rate = command.learning_rate;
      return false;
    case CommandKind::kSetPriorities:
      PBOX_CHECK(command.priorities.size() == shard.chunks().size());
      return true;
    case CommandKind::kSetCredit:
      PBOX_CHECK(command.weight > 0);
      shard.weight = command.weight;
      for (Session& session : shard.sessions()) session.credit_bytes = command.credit_bytes;
      egress_.send_grants(shard);
      return false;
    case CommandKind::kAdmit: return admit(shard, command);
    case CommandKind::kExclude: return command.changes_ranks = exclude(shard, command);
    case CommandKind::kTrace:
      set_trace(shard, command.trace);
      tracing_ = is_any_traced(context_);
      return false;
    case CommandKind::kCut:
      shard.cut = command.cut;
      if (shard.cut != nullptr) shard.cut->copy_resting(shard);
      return false;
    case CommandKind::kReportRounds:
      PBOX_CHECK(command.rounds.size() == shard.chunks().size());
      return true;
    case CommandKind::kGiveVerdict:
      PBOX_CHECK(shard.gate != nullptr);
      shard.gate->give(command.verdict);
      return false;
    case CommandKind::kSetSync:
      PBOX_CHECK(shard.is_relaxed() && command.rules.size() == shard.chunks().size());
      return true;
  }
  return false;
}

// Carries out the command on some more chunks. Returns true after the last chunk.
bool Engine::walk(Command& command) {
  JobShard& shard = *command.shard;
  const auto count = static_cast<uint32_t>(shard.chunk_count());
  size_t work = 0;
  uint32_t& at = command.chunks_done;
  for (; at < count && work < kChunksPerStep; ++at, ++work) {
    Chunk& chunk = shard.chunks()[at];
    switch (command.kind) {
      case CommandKind::kSetPriorities: chunk.priority = command.priorities[at]; break;
      case CommandKind::kSetSync: work += change_rule(shard, chunk, command.rules[at]); break;
      case CommandKind::kReportRounds:
        command.rounds[at] =
            command.rank == kNoRank ? chunk.open_round() : chunk.next_round(command.rank);
        break;
      default: work += change_membership(shard, chunk, command) / kElementsPerChunk;
    }
  }
  if (at < count) return false;
  shard.accept_generation(shard.generation);
  return true;
}

void Engine::install(JobShard& shard) {
  PBOX_CHECK(context_.shards.size() < limits::kShardsPerPipelineMax);  // admission counts them
  context_.shards.push_back(&shard);
  egress_.add(shard);
  shard.flight_number = flight_.next_shard_number();
  if (shard.finishes_later()) ++waiting_shards_;
  if (shard.has_tables) egress_.make_rows_room();
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
  if (session.seal.encrypts()) egress_.make_seal_room();
  entry = {session.spi, &shard, &session};
}

// Gives the rank a new session. The rank's address is unknown until its first packet arrives, and
// until then its queued resends are dropped. Packets already made for it go to its former address.
// Returns true if walk() has work to do on the chunks.
bool Engine::admit(JobShard& shard, Command& command) {
  PBOX_CHECK(command.rank < shard.worker_count());
  Session& session = shard.sessions()[command.rank];
  // In models that apply on arrival, an excluded rank has lost its clock and cannot come back.
  const bool has_clocks = shard.is_relaxed() && shard.relaxed_model != wire::SyncModel::kDrop;
  PBOX_CHECK(!has_clocks || session.present);
  if (session.present) context_.sessions.at(session.spi) = {};
  session.spi = command.spi;
  session.credit_bytes = command.credit_bytes;
  session.forget_address(command.known_host);
  session.takes_zeros = command.takes_zeros;
  // Packet numbers begin at 1 again, so the keys must be new.
  PBOX_CHECK(command.seal != nullptr || !session.seal.has_keys());
  count_key_updates(context_.counters, session);
  session.counted_updates_sent = session.counted_updates_received = 0;
  if (command.seal != nullptr) {
    std::swap(session.seal, *command.seal);
  } else {
    session.seal = {};
  }
  connect(shard, session);
  command.changes_ranks = !session.present;
  const bool walks = command.changes_ranks || (shard.has_tables && shard.is_relaxed()) ||
                     shard.grace.is_reserved();
  shard.set_present(session, true);
  shard.generation = command.generation;
  shard.accept_generation(walks ? JobShard::kNoGeneration : command.generation);
  return walks;
}

// Returns true if walk() has work to do on the chunks: the rank was present.
bool Engine::exclude(JobShard& shard, const Command& command) {
  PBOX_CHECK(command.rank < shard.worker_count());
  Session& session = shard.sessions()[command.rank];
  if (!session.present) return false;
  context_.sessions.at(session.spi) = {};
  shard.set_present(session, false);
  shard.generation = command.generation;
  shard.accepted_generation = JobShard::kNoGeneration;
  // Unsent packets for the rank can no longer be refreshed. Drop all unsent ones, as remove() does.
  if (shard.is_relaxed()) egress_.drop_unsent();
  return true;
}

// Carries out kAdmit or kExclude for one chunk. Returns how many elements it has worked on.
size_t Engine::change_membership(JobShard& shard, Chunk& chunk, const Command& command) {
  PBOX_DCHECK(shard.accepted_generation == JobShard::kNoGeneration);
  const Session& session = shard.sessions()[command.rank];
  if (!command.changes_ranks) {
    const bool has_readers = chunk.table != nullptr && chunk.table->readers != nullptr;
    if (has_readers) chunk.table->forget_reader(command.rank);
    if (shard.grace.is_reserved()) forget_late_push(shard, chunk, command.rank);
    return 0;
  }
  shard.recount(chunk, session);
  if (!session.present) {
    PBOX_CHECK(chunk.copy_rank != command.rank);
    if (chunk.sync != nullptr) drop_rank(shard, chunk, command.rank);
  } else if (shard.grace.is_reserved()) {
    forget_late_push(shard, chunk, command.rank);
  }
  return finish_if_complete(shard, chunk);
}

void Engine::discount_standstill(uint64_t gap_ns) {
  for (JobShard* shard : context_.shards) {
    shard->stragglers.discount(gap_ns);
    shard->grace.discount(gap_ns);
  }
}

void Engine::take_tick(uint64_t now_ns) {
  context_.now_ns = now_ns;
  context_.counters.add(Counter::kTicks);
  size_t queued = 0;
  for (JobShard* shard : context_.shards) {
    tick_sessions(context_.counters, *shard, now_ns);
    queued += shard->egress.size();
  }
  context_.counters.set(Counter::kQueuedChunks, queued);
  if (!tracing_) return;
  end_traces(context_);
  tracing_ = is_any_traced(context_);
}

void Engine::remove(JobShard& shard) {
  PBOX_DCHECK(waiting_shards_ <= context_.shards.size());
  if (std::erase(context_.shards, &shard) > 0 && shard.finishes_later()) --waiting_shards_;
  PBOX_DCHECK(waiting_shards_ <= context_.shards.size());
  if (waiting_shards_ == 0) due_ns_ = UINT64_MAX;
  tracing_ = is_any_traced(context_);
  for (Session& session : shard.sessions()) {
    count_key_updates(context_.counters, session);
    if (session.present) context_.sessions.at(session.spi) = {};
  }
  egress_.remove(shard);
}

}  // namespace pbox::pipeline
