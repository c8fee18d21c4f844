// When a worker may go on without the others: the consistency model of a job, as workers ask for it
// and pipelines decide it. BSP and ASP; SSP (Ho et al., NIPS 2013); ESSP (Dai et al., AAAI 2015);
// PSSP, its dynamic form, and dropping of stragglers (FluentPS, CLUSTER 2019).
//
// A worker's clock is the number of its iterations that are done. What it reads has a clock too:
// all workers' iterations below it are in the data. Staleness at a read is the data's clock minus
// the reader's: 0 under BSP, never below -staleness under SSP and ESSP.
#pragma once

#include <cstdint>

namespace pbox::wire {

// Values are stable: they cross the control connection and the C ABI.
enum class SyncModel : uint8_t {
  kBsp = 0,   // everybody waits for everybody, each round
  kAsp = 1,   // nobody waits
  kSsp = 2,   // the fastest is at most `staleness` iterations ahead of the slowest
  kEssp = 3,  // as SSP, but data is sent when everybody has passed a clock, without being asked for
  kPssp = 4,  // as SSP, but only the fastest waits, with `probability`
  kDpssp = 5,  // as PSSP, the farther ahead the likelier: probability / (1 + e^(staleness - lead))
  kDrop = 6,   // a round takes the first `quorum` workers; what others push to it is dropped
};
inline constexpr uint8_t kSyncModelCount = 7;

// When a worker that had to wait is let go on.
enum class Release : uint8_t {
  kSoft = 0,  // at the next advance of the slowest
  kLazy = 1,  // when everybody has finished the waiting worker's own iteration
};

// When a worker takes data from the box.
enum class Reads : uint8_t {
  kFresh = 0,   // each iteration
  kCached = 1,  // when its copy is older than the model allows; ESSP's way always
};

inline constexpr uint32_t kStalenessMax = 64;

struct SyncSpec {
  SyncModel model = SyncModel::kBsp;
  uint32_t staleness = 0;  // SSP, ESSP, PSSP, DPSSP: in iterations, at most kStalenessMax
  float probability = 1;   // PSSP's c, DPSSP's alpha: in (0, 1]
  Release release = Release::kSoft;
  Reads reads = Reads::kFresh;
  uint32_t quorum = 0;  // drop: in [1, world size]

  bool operator==(const SyncSpec&) const = default;
};

// Pushes are applied as they come: there are no rounds that wait for all workers.
constexpr bool applies_on_arrival(SyncModel model) {
  return model != SyncModel::kBsp && model != SyncModel::kDrop;
}

}  // namespace pbox::wire
