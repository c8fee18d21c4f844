// Checks a box's promises after every turn of a pipeline. Each packet is counted once. Each
// fragment is summed exactly once per rank. Rounds finish one after the other, with every rank in
// them. A packet that is not authentic changes nothing.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "pipeline/engine.h"
#include "tests/sim/destination_check.h"
#include "tests/sim/egress_check.h"
#include "tests/sim/rack.h"
#include "tests/sim/sync_replay.h"

namespace pbox::sim {

class BoxChecker {
 public:
  BoxChecker(Rack& rack, uint32_t pipelines) : rack_(rack), pipelines_(pipelines) {}

  void installed(uint32_t pipeline, pipeline::JobShard& shard);
  void removed(uint32_t pipeline, const pipeline::JobShard& shard);
  // Checks that the shards take no more than `counted_bytes`, the memory that the box counts.
  void check_memory(uint64_t counted_bytes) const;
  // Returns the bytes of memory that a pipeline's shards take.
  uint64_t bytes_on(uint32_t pipeline) const;
  // Called when a session with keys begins. The mirrors open what the worker and the box send.
  void sealed(uint32_t spi, SealMirror from_worker, SealMirror from_box);
  // Called when a worker is told of this session. From now on the job of its shard is known.
  void named(uint32_t pipeline, uint32_t spi, JobModel& job);

  // `damaged`: the turn handles one packet, which is not authentic, and no command.
  void before_turn(uint32_t pipeline, const pipeline::Engine& engine, bool damaged,
                   uint64_t now_ns);
  // Called when a packet is being sent. `port` still holds the packets that the turn has received.
  void sent(uint32_t pipeline, const SimPort& port, const nic::TxPacket& packet);
  void offered(uint32_t pipeline, std::span<const nic::TxPacket> packets, size_t taken) {
    pipelines_[pipeline].egress.offered(packets, taken);
  }
  void after_turn(uint32_t pipeline, const pipeline::Engine& engine, const SimPort& port,
                  bool commanded);
  // Returns a hash of all that an accepted packet can change on a pipeline.
  uint64_t state_of(uint32_t pipeline) const;
  // Checks all chunks, whether they were touched or not.
  void check_all();

 private:
  struct Shard {
    pipeline::JobShard* shard = nullptr;
    JobModel* job = nullptr;                // null until a worker has been told of the session
    std::vector<uint64_t> rounds_finished;  // by chunk of the shard
    std::vector<bool> copies;               // by chunk: the open round's result will be a copy
    uint32_t present = 0;  // ranks present before the turn, as bits; only if may_lack_ranks()
    std::unique_ptr<SyncReplay> replay;  // set if the model is not BSP
    // Compressed chunks, by chunk of the shard: the last result, and the residue that it has left.
    struct Blocks {
      uint64_t rounds = 0;
      std::vector<std::byte> result;
      std::vector<float> residue;
    };
    std::map<size_t, Blocks> blocks;
    // Compressed chunks in mode optimize, by chunk of the shard. `rounds` counts the rounds whose
    // result is made.
    struct Deltas {
      uint64_t rounds = 0;
      DeltaOracle::Held held;
      std::vector<std::byte> result;
    };
    std::map<size_t, Deltas> deltas;
  };
  struct Tally {
    uint64_t received = 0, verdicts = 0, pulls = 0;
  };
  struct Pipeline {
    std::vector<Shard> shards;
    EgressCheck egress;
    Tally before;
    bool damaged = false;
    bool replayed = false;  // this turn's packets have been replayed
    DestinationCheck destinations;
    uint64_t state_hash = 0;
  };

  struct Mirrors {
    SealMirror from_worker, from_box;
  };

  void replay(uint32_t index, const SimPort& port);
  bool opens(uint32_t index, wire::Parsed& parsed);
  // Returns the packet as it was before the box sealed it.
  nic::TxPacket opened(const nic::TxPacket& packet);
  void follow_keys(const Pipeline& pipeline);
  static bool is_overtaken(const Pipeline& pipeline, const wire::Header& header);
  // Calls act(session) for each session of the pipeline's shards.
  template <typename Act>
  static void for_each_session(const Pipeline& pipeline, const Act& act) {
    for (const Shard& entry : pipeline.shards) {
      for (const auto& session : entry.shard->sessions()) act(session);
    }
  }
  static Tally tally(const pipeline::Engine& engine);
  void check_all(Pipeline& pipeline);
  static uint64_t hash(const Pipeline& pipeline);
  void check_tally(const Pipeline& pipeline, const pipeline::Engine& engine,
                   const SimPort& port) const;
  static void check_resends(const Pipeline& pipeline);
  void check_touched(Shard& shard, const wire::Header& header);
  void check_chunk(Shard& shard, pipeline::Chunk& chunk);
  void check_sum(Shard& shard, const pipeline::Chunk& chunk, uint32_t fragment);
  void check_result(Shard& shard, const pipeline::Chunk& chunk, uint32_t ranks);
  static void check_blocks(Shard& shard, const pipeline::Chunk& chunk);
  static void check_deltas(Shard& shard, const pipeline::Chunk& chunk);

  Rack& rack_;
  std::vector<Pipeline> pipelines_;
  std::map<uint32_t, Mirrors> mirrors_;  // by spi
  std::vector<std::byte> room_ = std::vector<std::byte>(limits::kFragmentBytesMax);
  std::vector<std::byte> packet_;  // the sealed packet; opened() uses it again each time
};

}  // namespace pbox::sim
