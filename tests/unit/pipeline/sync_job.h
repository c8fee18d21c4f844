// A job whose consistency model is not BSP, on a box. It runs plain SGD at learning rate 1 on
// weights that begin at 100, so every weight shows how many gradients of 1 it contains.
#pragma once

#include <catch2/catch.hpp>
#include <vector>

#include "tests/unit/pipeline/box.h"

namespace pbox::test {

inline constexpr float kInitialWeight = 100;

struct SyncJob {
  explicit SyncJob(const wire::SyncSpec& sync, uint32_t workers = 3) {
    options.workers = workers;
    options.mode = pipeline::Mode::kOptimize;
    options.optimizer = {.kind = optimizer::OptimizerKind::kSgd, .learning_rate = 1};
    options.sync = sync;
  }

  // Installs the job and pushes its initial weights. Returns the packets that leave.
  std::vector<Sent> begin() {
    shard = &box.admit(options);
    for (uint32_t rank = 0; rank < options.workers; ++rank) {
      box.push_chunk(options, rank, kInitialWeight);
    }
    return box.take_all();
  }

  // The rank pushes all of a round. Returns the packets that leave.
  std::vector<Sent> push(uint32_t rank, uint32_t round, float value = 1) {
    box.push_chunk(options, rank, value, round);
    return box.take_all();
  }
  std::vector<Sent> pull(uint32_t rank, uint32_t round, uint64_t held_mask = 0) {
    box.deliver(box.pull(options, rank, round, held_mask));
    return box.take_all();
  }
  void exclude(uint32_t rank) {
    box.engine.execute(
        {.kind = pipeline::CommandKind::kExclude, .shard = shard, .rank = rank, .generation = 20});
  }

  Box box;
  JobOptions options;
  pipeline::JobShard* shard = nullptr;
};

inline uint32_t rank_of(const Sent& packet) {
  return packet.header.spi & 63;
}

// Returns the ranks that a result left for, in order. Checks that each got all three fragments.
inline std::vector<uint32_t> served(const std::vector<Sent>& sent) {
  std::vector<uint32_t> ranks;
  for (size_t index = 0; index < sent.size(); ++index) {
    REQUIRE(sent[index].header.type() == wire::PacketType::kResult);
    REQUIRE(sent[index].header.fragment == index % 3);
    if (index % 3 == 0) ranks.push_back(rank_of(sent[index]));
    REQUIRE(rank_of(sent[index]) == ranks.back());
  }
  return ranks;
}

}  // namespace pbox::test
