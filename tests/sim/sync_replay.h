// What a box must hold of a job whose consistency model is not bsp: counted from the packets that
// it is given, in their order, by rules of the model that are written here once more. After every
// turn it holds that, and what it sends says no more.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "nic/port.h"
#include "pipeline/job_shard.h"
#include "tests/sim/job_model.h"

namespace pbox::sim {

class SyncReplay {
 public:
  // Of a shard that has seen no packet yet. What another box has handed over with it is taken as it
  // is: reads, and the end, show whether it is what that box had.
  SyncReplay(pipeline::JobShard& shard, const JobModel& job);

  // An authentic packet of a session that has this rank.
  void received(uint32_t rank, const wire::Parsed& parsed);
  // A RESULT leaves for the rank: it must be of now, and say of itself what is in it.
  void check_sent(uint32_t rank, const nic::TxPacket& packet);
  // A command has been carried out: who is excluded now. Replies that were made may be void.
  void note_command();
  bool is_present(uint32_t rank) const { return (present_ >> rank & 1) != 0; }

  void check_chunk(uint32_t chunk) const;
  // Who may read is answered without having to ask; once nothing waits in the port.
  void check_answers(uint32_t chunk) const;
  void check_weights(uint32_t chunk, uint32_t fragment) const;
  void check_all() const;
  // The shard is given back, and nobody has been left out: no update is missing.
  void check_end() const;

 private:
  struct Pushed {
    uint32_t round = 0;
    uint64_t counted = 0;
  };
  struct Chunk {
    const pipeline::Chunk* held = nullptr;
    uint64_t clock = 0;                   // rounds below it are all workers'
    std::vector<uint64_t> next, claimed;  // by rank
    uint32_t due = 0;                     // ranks that are to be sent it, as bits
    uint32_t parked = 0;                  // ranks, as bits
    std::vector<Pushed> pushed;           // model drop: by rank, its newest round that is closed
    std::vector<float> weights, sums;
  };

  void begin_as_held(Chunk& chunk) const;
  bool applies_on_arrival(const Chunk& chunk) const;
  bool is_sound(const Chunk& chunk, const wire::Header& header) const;
  void on_push(Chunk& chunk, uint32_t rank, const wire::Parsed& parsed);
  void on_pull(Chunk& chunk, uint32_t rank, const wire::Parsed& parsed);
  void claim(Chunk& chunk, uint32_t rank, const wire::Parsed& parsed);
  void close_if_complete(Chunk& chunk);
  void advance(Chunk& chunk);
  bool waits(const Chunk& chunk, uint32_t rank, uint64_t round) const;
  bool goes_on(const Chunk& chunk, uint64_t round) const;
  uint64_t fastest(const Chunk& chunk) const;
  void step(Chunk& chunk, uint32_t fragment, std::span<const float> gradient) const;
  std::span<float> part(std::vector<float>& values, const Chunk& chunk, uint32_t fragment) const;
  uint32_t elements_of(const Chunk& chunk, uint32_t fragment) const;
  std::string place(const Chunk& chunk) const;

  pipeline::JobShard& shard_;
  const JobModel& job_;
  const wire::SyncSpec& sync_;
  bool cached_;
  uint16_t generation_;
  uint32_t present_ = 0;
  uint32_t heard_ = 0;  // ranks of which a packet came: what leaves for others has no address
  std::vector<Chunk> chunks_;  // as the shard has them
};

}  // namespace pbox::sim
