// Who is late, as the straggler ledgers of a job's pipelines have it together: plain values, made
// on the control thread when asked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "appliance/control/job_view.h"

namespace pbox::appliance {

// A rank that the others wait for now.
struct AwaitedView {
  uint32_t rank = 0;
  std::string peer;   // address of its control connection
  std::string state;  // as in WorkerView
  double waited_s = 0;
  double last_packet_age_s = -1;  // -1: none yet
  PlaceView place = {};           // the oldest that it has not pushed
};

// What a rank has cost the others, in rounds that are done.
struct LateRankView {
  uint32_t rank = 0;
  std::string peer;
  std::string state;
  uint64_t last_arrivals = 0;  // chunk rounds that it ended
  double last_share = 0;       // of the job's chunk rounds, [0, 1]
  double late_s = 0;        // in all: the last arrival less the one before it, summed over chunks
  double worst_late_s = 0;  // 0: it was never late
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

// One of the newest rounds, over the chunks that are done.
struct LateRoundView {
  uint64_t round = 0;
  uint64_t chunks = 0;
  double age_s = 0;         // since its last chunk was done
  double seconds = 0;       // from the first push that was whole to the last
  double late_s = 0;        // of its latest chunk
  uint32_t rank = 0;        // the last there
  std::string tensor = {};  // of that chunk
};

struct StragglerView {
  std::string job;
  std::string state;  // as in JobView
  uint32_t world_size = 0;
  uint64_t chunk_rounds = 0;
  bool kept = true;  // false: the job's consistency model has no rounds that wait for all
  std::vector<AwaitedView> awaited = {};     // the one awaited the longest first
  std::vector<LateRankView> ranks = {};      // the latest first
  std::vector<LateTensorView> tensors = {};  // the latest first; at most kStragglerTensorsShown
  std::vector<LateRoundView> rounds = {};    // the newest first; at most kStragglerRoundsShown
};

inline constexpr size_t kStragglerTensorsShown = 16;
inline constexpr size_t kStragglerRoundsShown = 16;

// Lists in the order that they are shown in, and as long; shares of what was counted.
void put_in_order(StragglerView& view);
// Another part of the same job that is on this box.
void add_part(StragglerView& job, const StragglerView& part);

}  // namespace pbox::appliance
