// What control may ask of a pipeline: plain values through one ring, answered by a ticket number.
#pragma once

#include <cstdint>
#include <span>

namespace pbox::pipeline {

class JobShard;
class RoundTrace;
class StateCut;

enum class CommandKind : uint8_t {
  kInstall,          // shard: serve it from now on
  kRemove,           // shard: forget it; after the ticket its memory is control's again. Harmless
                     // where it is forgotten already
  kSetLearningRate,  // shard, learning_rate
  kSetPriorities,    // shard, priorities: of its chunks, for the results finished from now on
  kSetCredit,        // shard, credit_bytes for every session of it; GRANTs go out
  kAdmit,    // shard, rank, spi, credit_bytes, generation: the rank takes part with this session
             // from now on; its former one, if any, is void. What it has contributed stands
  kExclude,  // shard, rank, generation: rounds no longer wait for the rank, whose session is void.
             // Not one that must still give back a copy
  kTrace,    // shard, trace: records in it from now on, nullptr: no more
  kCut,  // shard, cut: copies into it what comes to the cut, and of what rests there some. Again
         // with the same: some more. nullptr: no more
  kReportRounds,  // shard, rounds, rank: filled with the rank's next round of each of the shard's
                  // chunks; with model BSP, or drop, the open one
};

struct Command {
  CommandKind kind = CommandKind::kInstall;
  JobShard* shard = nullptr;
  float learning_rate = 0;
  uint32_t credit_bytes = 0;
  uint32_t rank = 0;
  uint32_t spi = 0;
  uint16_t generation = 0;
  RoundTrace* trace = nullptr;
  StateCut* cut = nullptr;
  std::span<uint32_t> rounds = {};
  std::span<const int32_t> priorities = {};
  uint64_t ticket = 0;  // ascending; completed in order
};

}  // namespace pbox::pipeline
