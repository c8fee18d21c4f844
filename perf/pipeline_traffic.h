// Prebuilt packets of one round in which all workers push all chunks of a job, in their order of
// arrival.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/numa_arena.h"
#include "nic/crypto/secret_pages.h"
#include "nic/seal/session_keys.h"
#include "pipeline/job_shard.h"

namespace pbox::perf {

class Traffic {
 public:
  struct Packet {
    std::byte* data = nullptr;
    uint32_t bytes = 0;
    uint32_t chunk = 0;
    uint32_t rank = 0;
    uint32_t offset_elements = 0;
    uint32_t elements = 0;
  };

  // Each worker's session has keys of its own, unless `suite` is kNone.
  Traffic(uint32_t workers, uint32_t fragment_bytes, seal::Suite suite);

  // Makes the packets of round 0. `shard` is the box's: the packets have its layout, and its
  // sessions get the box's ends of the seals.
  void build(pipeline::JobShard& shard);
  // Seals the packets for the next round.
  void next_round();

  // Returns no packets before build().
  const std::vector<Packet>& packets() const { return packets_; }
  double gradient_bytes() const { return gradient_bytes_; }
  uint32_t round() const { return round_; }

  // Returns the value of an element, which is the same in every worker's gradient. Sums over 64
  // workers are exact.
  static float value_of(uint32_t chunk, uint32_t index_in_fragment) {
    return static_cast<float>(1 + (index_in_fragment + chunk) % 7);
  }

 private:
  void make_seals(pipeline::JobShard& shard);
  void build_packet(const pipeline::JobShard& shard, const pipeline::Chunk& chunk, uint32_t rank,
                    uint32_t fragment);
  void fill(const Packet& packet) const;
  void seal(const Packet& packet);

  uint32_t workers_;
  uint32_t fragment_bytes_;
  seal::Suite suite_;
  uint32_t round_ = 0;
  double gradient_bytes_ = 0;
  NumaArena memory_;
  std::vector<Packet> packets_;
  std::shared_ptr<crypto::SecretPages> pages_ = std::make_shared<crypto::SecretPages>();
  std::vector<seal::SessionSeal> seals_;  // the workers' ends, by rank
};

}  // namespace pbox::perf
