// The consistency model of a job: when a worker may proceed without the others. Workers ask for a
// model, and pipelines enforce it. The models are BSP and ASP; SSP (Ho et al., NIPS 2013); ESSP
// (Dai et al., AAAI 2015); PSSP, dynamic PSSP and dropping of stragglers (FluentPS, CLUSTER 2019);
// and adaptive.
//
// A worker's clock is the number of iterations it has finished. The data that it reads has a clock
// too: the data contains all workers' iterations below that clock. The staleness of a read is the
// data's clock minus the reader's clock: 0 under BSP, never below -staleness under SSP and ESSP.
//
// The spec of a consistency model has a text form, the same in the C ABI, in Python and in pboxctl:
// the model's name, then the values that differ from its defaults, separated by colons. Examples:
//   bsp  asp  ssp:3  ssp:3:lazy  ssp:3:cached  essp:3  pssp:3:0.1  dpssp:3:0.5:lazy  drop:2
//   drop:2:500ms  drop:2:auto:next  dpssp:3:1:gradient  adaptive:1-8:0.05
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace pbox::wire {

// Values are stable: they appear on the control connection and in the C ABI.
enum class SyncModel : uint8_t {
  kBsp = 0,    // each round, every worker waits for all others
  kAsp = 1,    // no worker waits
  kSsp = 2,    // the fastest worker is at most `staleness` iterations ahead of the slowest
  kEssp = 3,   // like SSP, but the box sends data unasked when all workers have passed a clock
  kPssp = 4,   // like SSP, but only the fastest worker waits, with `probability`
  kDpssp = 5,  // like PSSP, with probability / (1 + e^(staleness - lead)), growing with the lead
  // A round takes the pushes of the first `quorum` workers, and those that follow within
  // `grace_ms`. Later pushes are dropped, or count in the round that is open then (`counts_late`).
  kDrop = 6,
  kAdaptive = 7,  // like PSSP, but the box chooses staleness, probability and release within bounds
};
inline constexpr uint8_t kSyncModelCount = 8;
inline constexpr const char* kSyncModelNames[] = {"bsp",  "asp",   "ssp",  "essp",
                                                  "pssp", "dpssp", "drop", "adaptive"};
static_assert(sizeof(kSyncModelNames) / sizeof(kSyncModelNames[0]) == kSyncModelCount);

// When a parked read is released.
enum class Release : uint8_t {
  kSoft = 0,  // at the next advance of the slowest worker
  kLazy = 1,  // when all workers have finished the waiting worker's own iteration
};

// When a worker reads from the box. With ESSP, kFresh means kCached.
enum class Reads : uint8_t {
  kFresh = 0,   // at each iteration
  kCached = 1,  // only when its copy is older than the model allows
  // At each iteration, once the data is as new as a cached copy would have to be. Meant for
  // optimizers whose step a worker cannot repeat on a copy.
  kAnswered = 2,
};

inline constexpr uint32_t kStalenessMax = 64;
inline constexpr uint32_t kGraceMsMax = 3'600'000;
inline constexpr uint32_t kGraceAuto = UINT32_MAX;

struct SyncSpec {
  SyncModel model = SyncModel::kBsp;
  // In iterations, at most kStalenessMax; only if has_staleness(model). kAdaptive: the upper bound.
  uint32_t staleness = 0;
  float probability = 1;  // c of PSSP, alpha of DPSSP; in (0, 1]. kAdaptive: lower bound of c
  Release release = Release::kSoft;
  Reads reads = Reads::kFresh;
  uint32_t quorum = 0;         // kDrop only: in [1, world size]
  uint32_t staleness_min = 0;  // kAdaptive only: lower bound of the staleness, in [0, staleness]
  // kDpssp only: alpha is `probability` times the push's significance (sync/significance.h).
  bool by_gradient = false;
  // kDrop only: how long a round that has its quorum waits for the other ranks, at most
  // kGraceMsMax. kGraceAuto: as long as most of them have needed so far
  // (pipeline/sync/round_grace.h).
  uint32_t grace_ms = 0;
  bool counts_late =
      false;  // kDrop only: a push that is late counts in the round that is open then

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

constexpr bool has_staleness(SyncModel model) {
  return model == SyncModel::kSsp || model == SyncModel::kEssp || model == SyncModel::kPssp ||
         model == SyncModel::kDpssp || model == SyncModel::kAdaptive;
}

constexpr bool has_probability(SyncModel model) {
  return model == SyncModel::kPssp || model == SyncModel::kDpssp || model == SyncModel::kAdaptive;
}

// Reads the text form. Checks the form only; check_sync() checks whether a job may have the values.
// The error names the word that is wrong, and what may stand in its place.
Result<SyncSpec> parse_sync_text(std::string_view text);
std::string sync_text(const SyncSpec& spec);

}  // namespace pbox::wire
