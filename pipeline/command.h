// What control may ask of a pipeline: plain values through one ring, answered by a ticket number.
#pragma once

#include <cstdint>

namespace pbox::pipeline {

class JobShard;

enum class CommandKind : uint8_t {
  kInstall,          // shard: serve it from now on
  kRemove,           // shard: forget it; after the ticket its memory is control's again
  kSetLearningRate,  // shard, learning_rate
  kSetCredit,        // shard, credit_bytes for every session of it; GRANTs go out
};

struct Command {
  CommandKind kind = CommandKind::kInstall;
  JobShard* shard = nullptr;
  float learning_rate = 0;
  uint32_t credit_bytes = 0;
  uint64_t ticket = 0;  // ascending; completed in order
};

}  // namespace pbox::pipeline
