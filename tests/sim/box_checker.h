// Holds a box to its promises, after every turn of a pipeline: each packet counted once, each
// fragment summed exactly once per rank, rounds finished one after the other and with every rank
// in, and nothing changed by a packet that is not authentic.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "pipeline/engine.h"
#include "tests/sim/rack.h"
#include "tests/sim/sync_replay.h"

namespace pbox::sim {

class BoxChecker {
 public:
  BoxChecker(Rack& rack, uint32_t pipelines) : rack_(rack), pipelines_(pipelines) {}

  void installed(uint32_t pipeline, pipeline::JobShard& shard);
  void removed(uint32_t pipeline, const pipeline::JobShard& shard);
  // A worker was told of this session: now it is known whose shard it is.
  void named(uint32_t pipeline, uint32_t spi, JobModel& job);

  // `damaged`: the turn sees one packet, which is not authentic, and no command.
  void before_turn(uint32_t pipeline, const pipeline::Engine& core, bool damaged);
  // `commanded`: control had something done, which may concern chunks that no packet was about.
  // A packet leaves; `port` holds what the turn has received.
  void sent(uint32_t pipeline, const SimPort& port, const nic::TxPacket& packet);
  void after_turn(uint32_t pipeline, const pipeline::Engine& core, const SimPort& port,
                  bool commanded);
  // Everything, whatever was touched.
  void check_all();

 private:
  struct Shard {
    pipeline::JobShard* shard = nullptr;
    JobModel* job = nullptr;                // null until a worker was told
    std::vector<uint64_t> rounds_finished;  // by chunk of the shard
    std::vector<bool> copies;               // the open round is to be a copy
    std::unique_ptr<SyncReplay> replay;     // where the model is not bsp
  };
  struct Tally {
    uint64_t received = 0, verdicts = 0, pulls = 0;
  };
  struct Pipeline {
    std::vector<Shard> shards;
    Tally before;
    bool damaged = false;
    bool replayed = false;  // this turn's packets
    uint64_t state_hash = 0;
  };

  void replay(Pipeline& pipeline, const SimPort& port) const;
  static Tally tally(const pipeline::Engine& core);
  void check_all(Pipeline& pipeline);
  static uint64_t hash(const Pipeline& pipeline);
  void check_tally(const Pipeline& pipeline, const pipeline::Engine& core,
                   const SimPort& port) const;
  void check_touched(Shard& shard, const wire::Header& header);
  void check_chunk(Shard& shard, pipeline::Chunk& chunk);
  void check_sum(Shard& shard, const pipeline::Chunk& chunk, uint32_t fragment);
  void check_result(Shard& shard, const pipeline::Chunk& chunk, uint32_t ranks);

  Rack& rack_;
  std::vector<Pipeline> pipelines_;
};

}  // namespace pbox::sim
