// A job, seen from outside: where its chunks lie, what its results must be, and what its members
// have been through.
#pragma once

#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "tests/sim/network.h"
#include "tests/sim/oracle.h"
#include "tests/sim/read_oracle.h"

namespace pbox::sim {

struct JobModel {
  struct Chunk {
    uint32_t tensor = 0;
    uint32_t first_element = 0;
    uint32_t elements = 0;
  };

  JobModel(uint64_t seed, uint32_t index, const JobOptions& options, HostId first_host);
  JobModel(const JobModel&) = delete;  // its parts refer to each other
  JobModel& operator=(const JobModel&) = delete;

  // A rank begins a process; which of its processes it is. A new one computes other gradients,
  // unless an optimizer makes of them what no sum shows.
  uint32_t begin_process(uint32_t rank);

  // What is wrong with a chunk's result; nothing if it is right. Where ranks may be left out it is
  // the sum of some that has all of `ranks`, in each fragment; of each rank, one process's part.
  std::optional<std::string> wrong(uint32_t chunk, uint32_t round, uint32_t ranks,
                                   const std::byte* bytes);
  // The same of what a rank has consumed, which is then what every other must consume, as long as
  // the rank lives and is in the job.
  std::optional<std::string> consume(uint32_t rank, uint32_t chunk, uint32_t round,
                                     const std::byte* bytes);
  void forget(uint32_t rank);
  // A rank is asked for the results of these chunks' open rounds: the state that a box had of them
  // is lost, which must have had a cause.
  void give_back(std::span<const uint32_t> give, std::span<const uint32_t> open_rounds);
  // What is wrong with a chunk that a rank has read in a round, where the model is not bsp.
  std::optional<std::string> read(uint32_t rank, uint32_t chunk, uint32_t round,
                                  const std::byte* bytes);
  // What is wrong with sums that the box holds of `ranks`: a fragment's, from `first` on.
  std::optional<std::string> wrong_sums(uint32_t chunk, uint32_t round, uint32_t ranks,
                                        uint32_t first, std::span<const float> sums) const;

  uint32_t element_bytes() const { return wire::dtype_bytes(options.dtype); }
  uint32_t all_ranks() const { return (1u << options.workers) - 1; }
  // A member that may push anything makes sums that mean nothing.
  bool has_known_sums() const { return !options.rogue; }
  bool may_lack_ranks() const { return options.on_worker_lost == appliance::LostPolicy::kPartial; }

  uint32_t index;
  const JobOptions& options;
  HostId first_host;  // of rank 0; rank r has first_host + r
  std::string name;
  Gradients gradients;
  Oracle oracle;
  ReadOracle reads;           // where the model is not bsp
  std::vector<Chunk> chunks;  // by id

  bool may_fail = false;    // something has happened that it need not survive
  std::set<uint32_t> lost;  // ranks that may fail though the others must not
  bool disturbed = false;   // somebody may be taken for lost, now or later
  bool is_ending = false;   // a rank has left, or failed for good
  // Its box was lost, or seemed lost to another that asked it for the job's state.
  bool may_lose_state = false;
  std::set<uint32_t> at_barrier;

 private:
  bool is_right_part(const Chunk& chunk, uint32_t round, uint32_t ranks, const std::byte* bytes,
                     uint32_t first, uint32_t count) const;
  // The ranks that are in sums, from `first` on; nothing if they are no sums of whole parts.
  std::optional<uint32_t> contributors(const Chunk& chunk, uint32_t round, uint32_t first,
                                       std::span<const double> sums) const;
  bool has_replacements() const;
  float result(double sum, uint32_t count) const;

  uint32_t fragment_bytes_;
  std::vector<uint32_t> processes_;  // by rank, how many it has had
  struct Consumed {
    std::vector<std::byte> bytes;
    std::set<uint32_t> ranks;
  };
  // By chunk and round; of jobs that sum only: what an optimizer makes has an oracle.
  std::vector<std::map<uint32_t, Consumed>> consumed_;
};

}  // namespace pbox::sim
