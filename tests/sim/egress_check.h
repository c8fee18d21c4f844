// Checks the order in which results leave a pipeline, burst by burst. A first copy is a result that
// its rank has not been sent before. The most urgent first copy of all parts of a job goes first. A
// job's oldest resend goes with each burst, whatever its priority. Other resends do not go before
// first copies that are more urgent.
//
// Each part of a job sends results in groups of two chunks for one worker. A group that has begun
// goes on, so its second chunk may be less urgent than another part's result.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nic/port.h"
#include "pipeline/job_shard.h"
#include "tests/sim/job_model.h"

namespace pbox::sim {

class EgressCheck {
 public:
  void add(pipeline::JobShard& shard);
  void remove(const pipeline::JobShard& shard);
  // Called when the shard's job becomes known.
  void name(const pipeline::JobShard& shard, const JobModel& job);
  // Called when the pipeline has offered these packets to its port, which took the first `taken`.
  void offered(std::span<const nic::TxPacket> packets, size_t taken);

 private:
  struct Part {
    pipeline::JobShard* shard = nullptr;
    // True if the checker knows the order of the part's results: first copies go to all ranks, with
    // priorities that do not change.
    bool is_ordered = false;
    // The newest first copy that was sent: its rank, chunk and own priority. `priority` is the one
    // by which it may have been chosen: that of the chunk before it if that chunk went to the same
    // rank and is more urgent, otherwise its own.
    uint32_t rank = UINT32_MAX, chunk = 0;
    int32_t own_priority = 0, priority = 0;
  };
  struct Resend {
    const pipeline::JobShard* shard = nullptr;
    uint32_t chunk = 0, rank = 0;
    uint64_t sequence = 0, mask = 0;
  };
  struct Job {
    std::string name = {};
    std::vector<Part> parts = {};
    std::optional<Resend> oldest = {};  // the oldest resend that the previous burst has left over
  };
  // A RESULT of a burst.
  struct Sent {
    size_t part = 0;
    uint32_t chunk = 0, rank = 0;
    bool is_resend = false;
    int32_t own_priority = 0;
    int32_t priority = 0;  // see Part::priority
  };

  static void note_first_copy(Part& part, uint32_t rank, const pipeline::Chunk& chunk);
  static std::vector<Sent> results_of(Job& job, std::span<const nic::TxPacket> packets);
  static void check_first_copies(const Job& job, const std::vector<Sent>& results);
  static void check_resends(const Job& job, const std::vector<Sent>& results);
  static void check_oldest(Job& job, const std::vector<Sent>& results);
  static std::optional<Resend> oldest_of(const Job& job);

  std::vector<Job> jobs_;
  size_t left_over_ = 0;  // packets of the last burst that the port has not taken yet
};

}  // namespace pbox::sim
