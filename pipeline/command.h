// Commands of the control thread to a pipeline: plain values in one ring. The pipeline carries them
// out in order, one at a time, and completes each by its ticket number. A command that looks at
// every chunk of a shard may take several turns of the loop.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "nic/endpoint.h"
#include "nic/seal/session_seal.h"
#include "nic/wire/sync.h"
#include "pipeline/step_gate.h"

namespace pbox::pipeline {

class JobShard;
class RoundTrace;
class StateCut;

enum class CommandKind : uint8_t {
  // shard: the pipeline serves it from now on.
  kInstall,
  // shard: the pipeline no longer references it. Once the ticket is completed, its memory belongs
  // to the control thread again. Has no effect on a shard that is not installed.
  kRemove,
  // shard, learning_rate
  kSetLearningRate,
  // shard, priorities: one per chunk of the shard, for the results finished from now on.
  kSetPriorities,
  // shard, credit_bytes, weight: the credit of every session of the shard, and its tenant's weight.
  // A GRANT tells it to each worker whose address is known.
  kSetCredit,
  // shard, rank, spi, credit_bytes, generation, known_host, takes_zeros, seal: the rank takes part
  // with this session from now on. Its former session, if any, ends, and `seal` then points to the
  // former session's seal. The fragments that the rank has pushed still count.
  kAdmit,
  // shard, rank, generation: rounds no longer wait for the rank, and its session ends. Not allowed
  // for a rank that must still give back a result (Chunk::copy_rank).
  kExclude,
  // shard, trace: records into it from now on. nullptr: stops.
  kTrace,
  // shard, cut: copies each chunk into `cut` before a round takes it past the cut, and now some of
  // the chunks that rest there. The same command again copies some more. nullptr: stops.
  kCut,
  // shard, rounds, rank: fills `rounds`, one per chunk of the shard, with the round that the rank
  // pushes next. With models BSP and drop, or if `rank` is kNoRank, this is the open round.
  kReportRounds,
  // shard, verdict: steps or skips the rounds that its StepGate holds. The shard has a gate.
  kGiveVerdict,
  // shard, rules: sets the consistency rule of each chunk of the shard, for reads that are asked
  // for from now on. Parked reads are judged again. The shard is relaxed, and each chunk's rule may
  // change to the new one (sync::may_follow).
  kSetSync,
};

struct Command {
  CommandKind kind = CommandKind::kInstall;
  JobShard* shard = nullptr;
  float learning_rate = 0;
  uint32_t credit_bytes = 0;
  uint32_t weight = 1;
  uint32_t rank = 0;
  uint32_t spi = 0;
  uint16_t generation = 0;
  std::optional<nic::Endpoint> known_host = {};
  bool takes_zeros = false;
  seal::SessionSeal* seal = nullptr;  // null: a session without keys
  RoundTrace* trace = nullptr;
  StateCut* cut = nullptr;
  std::span<uint32_t> rounds = {};
  std::span<const int32_t> priorities = {};
  std::span<const wire::SyncSpec> rules = {};
  StepVerdict verdict = {};
  uint32_t chunks_done = 0;    // progress of Engine::step; 0 at first
  bool changes_ranks = false;  // set by Engine::step: the set of present ranks has changed
  uint64_t ticket = 0;         // ascending from 1; tickets are completed in order
};

}  // namespace pbox::pipeline
