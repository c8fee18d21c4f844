// The state that a box must have for a job in which some tensor's model is not BSP. It is computed
// from the packets that the box receives, in their order, by a second implementation of the model's
// rules. After every turn the box's state must equal it, and the packets that the box sends must
// agree with it.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "nic/port.h"
#include "pipeline/job_shard.h"
#include "tests/sim/job_model.h"

namespace pbox::sim {

class SyncReplay {
 public:
  // The shard must have received no packet yet. State that another box has handed over with it is
  // accepted unchecked, except for compressed weights. Reads and check_end() show whether it is
  // right.
  SyncReplay(pipeline::JobShard& shard, JobModel& job);

  // Called when a turn of the pipeline begins, at this time of its clock.
  void begin_turn(uint64_t now_ns) { now_ns_ = now_ns; }
  // Called when all packets of the turn have been applied. Closes the rounds whose grace is over,
  // and returns whether there were any.
  bool end_graces();
  // Applies an authentic packet from this rank's session.
  void received(uint32_t rank, const wire::Parsed& parsed);
  // Checks a RESULT that is sent to the rank: it must hold and describe the current weights.
  void check_sent(uint32_t rank, const nic::TxPacket& packet);
  // Called when a command has been carried out, which may have excluded ranks or changed models. It
  // may have discarded replies that were due.
  void note_command();
  // Returns whether packets with this spi are the rank's, and the rank is in the job.
  bool is_of(uint32_t spi, uint32_t rank) const { return is_present(rank) && spis_[rank] == spi; }
  bool is_present(uint32_t rank) const { return (present_ >> rank & 1) != 0; }

  void check_chunk(uint32_t chunk) const;
  // Checks that every rank that may read is answered without having to ask. Call it once no packet
  // waits in the port.
  void check_answers(uint32_t chunk) const;
  void check_weights(uint32_t chunk, uint32_t fragment) const;
  void check_all() const;
  // Called when the shard is removed. Checks that no update is missing, if no rank was excluded.
  void check_end() const;

 private:
  struct Pushed {
    uint32_t round = 0;
    uint64_t mask = 0;     // fragments that have arrived
    uint64_t counted = 0;  // those of them that were in time
  };
  struct Chunk {
    const pipeline::Chunk* held = nullptr;
    wire::SyncSpec rule;
    bool reads_cached() const { return rule.reads == wire::Reads::kCached; }
    bool waits_for_clock() const { return rule.reads != wire::Reads::kFresh; }
    uint64_t clock = 0;                   // all workers have pushed the rounds below it
    std::vector<uint64_t> next, claimed;  // by rank: its next round, and fragments that arrived
    uint32_t due = 0;                     // ranks to which the chunk must be sent, as bits
    uint32_t parked = 0;                  // ranks with a parked read, as bits
    // The next four are for model `drop`. `pushed`: by rank, the newest closed round with its push.
    std::vector<Pushed> pushed;
    uint64_t quorum_ns = 0;      // when the open round reached its quorum; 0 if it has not
    uint64_t quorum_number = 0;  // order in which rounds reached their quorums
    uint64_t former_ns = 0;  // the previous round's quorum_ns; 0 if it did not wait for more ranks
    std::vector<float> weights, sums;
    std::vector<uint64_t> weight_sums;  // by fragment, over the pushes in `sums`
    // For compressed chunks: the optimizer's own weights, and the last result's blocks. If `delta`
    // is empty, the last result is the weights.
    std::vector<float> master;
    std::vector<std::byte> delta;
    // Ranks that have begun a new session, or asked for weights, since their last push in time.
    uint32_t lacking = 0;
    // Set in a replicated chunk of model `drop` while its round has closed and waits for the backup
    // box: the chunk before it closed. Packets of the last result may still leave.
    std::shared_ptr<const Chunk> last;
  };

  // Checks that the model that the ranks have registered, or the operator has set, is in force.
  void check_model(const Chunk& chunk) const;
  uint32_t follow_sessions();
  void follow_model(Chunk& chunk);
  void forget_late_push(uint32_t rank);
  void begin_as_held(Chunk& chunk) const;
  bool applies_on_arrival(const Chunk& chunk) const;
  bool is_sound(const Chunk& chunk, const wire::Header& header) const;
  // Divides a fragment's sums by the weights of its pushes, in a weighted job.
  void divide_by_weights(const Chunk& chunk, uint32_t fragment, std::span<float> sums) const;
  // These describe the layout of the open round, whose number is the clock.
  bool has_deltas(const Chunk& chunk) const { return job_.has_deltas(chunk.held->id); }
  wire::Dtype dtype_of(const Chunk& chunk) const;
  uint32_t fragment_count(const Chunk& chunk) const;
  uint64_t full_mask(const Chunk& chunk) const { return wire::full_mask(fragment_count(chunk)); }
  uint32_t first_of(const Chunk& chunk, uint32_t fragment) const;
  // These are for compressed chunks, in sync_replay_deltas.cc. The type in a header says whether
  // the packet is about weights in full (f32) or about blocks.
  static bool names_f32(const wire::Header& header);
  void begin_deltas(Chunk& chunk) const;
  void note_pull(Chunk& chunk, uint32_t rank, const wire::Header& header) const;
  void make_delta(Chunk& chunk);
  uint64_t delta_mask(const Chunk& chunk) const;
  void recut_pushes(Chunk& chunk) const;
  bool replies_in_full(const Chunk& chunk, uint32_t rank) const;
  void check_delta_sent(const Chunk& chunk, uint32_t rank, const nic::TxPacket& packet) const;
  void check_delta(const Chunk& chunk) const;
  void on_push(Chunk& chunk, uint32_t rank, const wire::Parsed& parsed);
  void on_pull(Chunk& chunk, uint32_t rank, const wire::Parsed& parsed);
  void add(Chunk& chunk, uint32_t rank, const wire::Parsed& parsed) const;
  void close_if_complete(Chunk& chunk);
  void close(Chunk& chunk);
  // Publishes the round that has closed, and opens the next one.
  void publish(Chunk& chunk) const;
  // Returns the number of ranks that have pushed all of the open round.
  uint32_t complete_ranks(const Chunk& chunk) const;
  // Returns whether the open round waits for more ranks than its quorum.
  bool has_grace(const Chunk& chunk, uint32_t complete) const;
  void note_lateness(const Chunk& chunk, uint64_t since_ns);
  uint64_t auto_grace_ns() const;
  void advance(Chunk& chunk);
  bool waits(const Chunk& chunk, uint32_t rank, uint64_t round) const;
  bool goes_on(const Chunk& chunk, uint64_t round) const;
  uint64_t fastest(const Chunk& chunk) const;
  // Returns whether a push of the chunk carries rows of a table.
  bool is_gradient_of_table(const Chunk& chunk) const;
  void take_rows(Chunk& chunk, const wire::RowsView& rows) const;
  void step(Chunk& chunk, uint32_t fragment, std::span<const float> gradient) const;
  void step(std::span<float> weights, std::span<const float> gradient) const;
  std::span<float> part(std::vector<float>& values, const Chunk& chunk, uint32_t fragment) const;
  uint32_t elements_of(const Chunk& chunk, uint32_t fragment) const;
  std::string place(const Chunk& chunk) const;

  pipeline::JobShard& shard_;
  JobModel& job_;
  // These are the shard's values when this turn's packets arrived. Commands of the same turn may
  // have changed the shard since.
  uint32_t epoch_ = 0;
  uint16_t generation_ = 0;
  std::vector<uint32_t> spis_;  // by rank
  uint32_t present_ = 0;
  uint32_t heard_ = 0;  // ranks whose packets have arrived, as bits; only they have a known address
  std::vector<Chunk> chunks_;  // in the shard's order
  uint64_t now_ns_ = 0;
  uint64_t quorums_ = 0;               // rounds that have waited for more ranks than their quorum
  std::vector<uint64_t> lateness_ns_;  // samples: how long after a quorum a rank was done
};

}  // namespace pbox::sim
