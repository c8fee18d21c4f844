// Which ranks are late, combined from the straggler ledgers of a job's pipelines. Plain values,
// made on the control thread on request.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "appliance/control/job_view.h"

namespace pbox::control {

// A rank that the others are waiting for now.
struct AwaitedView {
  uint32_t rank = 0;
  std::string peer;   // address of its control connection
  std::string state;  // as in WorkerView
  double waited_s = 0;
  double last_packet_age_s = -1;  // -1: no packet yet
  PlaceView place = {};           // oldest chunk round that it has not pushed
};

// How long a rank has delayed the others, in finished rounds.
struct LateRankView {
  uint32_t rank = 0;
  std::string peer;
  std::string state;
  uint64_t last_arrivals = 0;  // chunk rounds in which it arrived last
  double last_share = 0;       // share of the job's chunk rounds, in [0, 1]
  // Time from the second-last to the last arrival, summed over those chunk rounds.
  double late_s = 0;
  double worst_late_s = 0;  // 0 if it was never late
  double worst_age_s = 0;
  PlaceView worst = {};
};

struct LateTensorView {
  std::string tensor;
  double late_s = 0;
  double worst_late_s = 0;
  uint32_t worst_rank = 0;
  uint64_t worst_round = 0;
};

// One of the newest rounds, over its finished chunks.
struct LateRoundView {
  uint64_t round = 0;
  uint64_t chunks = 0;
  double age_s = 0;         // since its last chunk finished
  double seconds = 0;       // from the first complete push to the last
  double late_s = 0;        // lateness of the chunk that arrived last
  uint32_t rank = 0;        // rank that arrived last
  std::string tensor = {};  // tensor of that chunk
};

struct StragglerView {
  std::string job;
  std::string state;  // as in JobView
  uint32_t world_size = 0;
  uint64_t chunk_rounds = 0;
  std::vector<AwaitedView> awaited = {};     // longest wait first
  std::vector<LateRankView> ranks = {};      // latest first
  std::vector<LateTensorView> tensors = {};  // latest first; at most kStragglerTensorsShown
  std::vector<LateRoundView> rounds = {};    // newest first; at most kStragglerRoundsShown
};

inline constexpr size_t kStragglerTensorsShown = 16;
inline constexpr size_t kStragglerRoundsShown = 16;

// Sorts the lists into the order in which they are shown, truncates them and fills in the shares.
void sort_for_display(StragglerView& view);
// Merges the view of another part of the same job on this box.
void add_part(StragglerView& job, const StragglerView& part);

}  // namespace pbox::control
