// The consistency model of a job: when a worker may proceed without the others. Workers ask for a
// model, and pipelines enforce it. The models are BSP and ASP; SSP (Ho et al., NIPS 2013); ESSP
// (Dai et al., AAAI 2015); PSSP, dynamic PSSP and dropping of stragglers (FluentPS, CLUSTER 2019).
//
// A worker's clock is the number of iterations it has finished. The data that it reads has a clock
// too: the data contains all workers' iterations below that clock. The staleness of a read is the
// data's clock minus the reader's clock: 0 under BSP, never below -staleness under SSP and ESSP.
#pragma once

#include <cstdint>

namespace pbox::wire {

// Values are stable: they appear on the control connection and in the C ABI.
enum class SyncModel : uint8_t {
  kBsp = 0,    // each round, every worker waits for all others
  kAsp = 1,    // no worker waits
  kSsp = 2,    // the fastest worker is at most `staleness` iterations ahead of the slowest
  kEssp = 3,   // as SSP, but the box sends data unasked when all workers have passed a clock
  kPssp = 4,   // as SSP, but only the fastest worker waits, with `probability`
  kDpssp = 5,  // as PSSP, with probability / (1 + e^(staleness - lead)), which grows with the lead
  kDrop = 6,   // a round takes the first `quorum` workers; later pushes to it are dropped
};
inline constexpr uint8_t kSyncModelCount = 7;

// When a parked read is released.
enum class Release : uint8_t {
  kSoft = 0,  // at the next advance of the slowest worker
  kLazy = 1,  // when all workers have finished the waiting worker's own iteration
};

// When a worker reads from the box. ESSP knows the last two only.
enum class Reads : uint8_t {
  kFresh = 0,   // at each iteration
  kCached = 1,  // only when its copy is older than the model allows
  // At each iteration, once the data is as new as a cached copy would have to be. For optimizers
  // whose step a worker cannot repeat on a copy.
  kAnswered = 2,
};

inline constexpr uint32_t kStalenessMax = 64;

struct SyncSpec {
  SyncModel model = SyncModel::kBsp;
  uint32_t staleness = 0;  // iterations, at most kStalenessMax; SSP, ESSP, PSSP and DPSSP only
  float probability = 1;   // c of PSSP, alpha of DPSSP; in (0, 1]
  Release release = Release::kSoft;
  Reads reads = Reads::kFresh;
  uint32_t quorum = 0;  // kDrop only: in [1, world size]

  bool operator==(const SyncSpec&) const = default;
};

// Returns whether workers keep copies of the weights, to which they add their own updates.
constexpr bool keeps_copies(const SyncSpec& spec) {
  return spec.reads == Reads::kCached ||
         (spec.model == SyncModel::kEssp && spec.reads == Reads::kFresh);
}

// Returns whether the box applies each push on arrival, so that no round waits for all workers.
constexpr bool applies_on_arrival(SyncModel model) {
  return model != SyncModel::kBsp && model != SyncModel::kDrop;
}

}  // namespace pbox::wire
