// What a flight recorder kept, driven through the pipeline's own core once more, and every verdict
// compared with the recorded one. Payloads are zeroes: they change no verdict. A packet is judged
// once the state that it met is known: its job's part and, unless it was refused before that
// mattered, its chunk's round.
//
// Records are taken with doubt: what cannot be is counted as damaged, and the rest goes on.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "pipeline/observe/flight_image.h"

namespace pboxctl {

struct RankReplay {
  bool present = false;  // at the end
  uint64_t fragments = 0;
  uint64_t duplicates = 0;
  uint64_t pulls = 0;
  uint64_t refused = 0;         // whatever the reason
  uint64_t last = 0;            // chunk rounds that it ended
  uint64_t last_packet_ns = 0;  // 0: none
};

struct OpenRound {
  uint32_t pipeline = 0;
  uint32_t chunk = 0;
  uint64_t round = 0;
  std::vector<uint32_t> missing;  // ranks whose push is not complete
};

struct ResultKey {
  uint32_t part = 0;
  uint32_t chunk = 0;
  uint32_t round = 0;
  auto operator<=>(const ResultKey&) const = default;
};

// Of one piece of the result.
struct ResultDigest {
  uint32_t epoch = 0;
  uint16_t piece = 0;
  uint16_t bytes = 0;
  uint32_t digest = 0;
};

// All parts of jobs of one name.
struct JobReplay {
  std::string model;          // "bsp", ...; of others packets are counted, and not replayed
  uint64_t chunk_rounds = 0;  // that were finished
  uint64_t newest_round = 0;  // and 1; 0: none was finished
  std::vector<RankReplay> ranks;
  std::vector<OpenRound> open_rounds;  // at the end
  // That have left for all ranks, of the newest epoch; model bsp.
  std::map<ResultKey, ResultDigest> results;
};

struct Difference {
  uint32_t pipeline = 0;
  uint64_t record = 0;  // number, from the pipeline's start
  std::string text;
};

struct PipelineReplay {
  uint32_t index = 0;
  uint64_t first = 0;  // number of the first record
  uint64_t records = 0;
  uint64_t begun_unix_ns = 0;  // the wall's time of the first record
  uint64_t lasted_ns = 0;      // from the first record to the last
  std::array<uint64_t, static_cast<size_t>(pbox::pipeline::Verdict::kCount)> verdicts{};
  uint64_t judged = 0;        // packets whose verdict was compared
  uint64_t too_early = 0;     // packets of what was not known yet
  uint64_t other_models = 0;  // packets of jobs that are not replayed
  uint64_t damaged = 0;       // records that cannot be
  std::string interrupted;    // the packet that the pipeline was at in the end; empty: none
};

struct FlightReplay {
  static constexpr size_t kDifferencesShown = 20;

  std::vector<PipelineReplay> pipelines;
  std::map<std::string, JobReplay> jobs;
  std::vector<Difference> differences;  // the first of them
  uint64_t difference_count = 0;
};

// Takes memory for the chunks that the images name, as the box did, and one pipeline after the
// other.
FlightReplay replay(const std::vector<pbox::pipeline::FlightImage>& images);

}  // namespace pboxctl
