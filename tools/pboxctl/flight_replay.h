// Replays a flight recorder's records through the pipeline's own engine, and compares every verdict
// with the recorded one. Payloads are zeroes, because no verdict depends on them. A packet is
// judged only if the state that it met is known: the part of its job and, unless the packet was
// refused before that mattered, the round of its chunk.
//
// Records may be damaged. An impossible record is counted as damaged, and the replay continues.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "pipeline/observe/flight_image.h"

namespace pboxctl {

struct RankReplay {
  bool present = false;  // takes part at the end of the records
  uint64_t fragments = 0;
  uint64_t duplicates = 0;
  uint64_t pulls = 0;
  uint64_t refused = 0;         // packets refused, for any reason
  uint64_t last = 0;            // chunk rounds in which the rank was the last
  uint64_t last_packet_ns = 0;  // time of its last packet; 0 if there is none
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
  // NOLINTNEXTLINE(modernize-use-nullptr): there is no pointer.
  auto operator<=>(const ResultKey&) const = default;
};

// The digest of one piece of a result.
struct ResultDigest {
  uint32_t epoch = 0;
  uint16_t piece = 0;
  uint16_t bytes = 0;
  uint32_t digest = 0;
};

// All parts of jobs of one name.
struct JobReplay {
  std::string model;          // "bsp", ...; packets of other models are counted, not replayed
  uint64_t chunk_rounds = 0;  // finished rounds, over all chunks
  uint64_t newest_round = 0;  // newest finished round plus 1; 0 if no round was finished
  std::vector<RankReplay> ranks;
  std::vector<OpenRound> open_rounds;  // rounds open at the end of the records
  // Results of the newest epoch that have left for all ranks. Model bsp only.
  std::map<ResultKey, ResultDigest> results;
};

struct Difference {
  uint32_t pipeline = 0;
  uint64_t record = 0;  // number of the record, counted from the pipeline's start
  std::string text;
};

struct PipelineReplay {
  uint32_t index = 0;
  uint64_t first = 0;  // number of the first record
  uint64_t records = 0;
  uint64_t begun_unix_ns = 0;  // wall-clock time of the first record
  uint64_t lasted_ns = 0;      // time from the first record to the last
  std::array<uint64_t, static_cast<size_t>(pbox::pipeline::Verdict::kCount)> verdicts{};
  uint64_t judged = 0;        // packets whose verdict was compared
  uint64_t too_early = 0;     // packets that met a state not known yet
  uint64_t other_models = 0;  // packets of jobs that are not replayed
  uint64_t damaged = 0;       // impossible records
  std::string interrupted;    // the packet in progress at the end; empty if there is none
};

struct FlightReplay {
  static constexpr size_t kDifferencesShown = 20;

  std::vector<PipelineReplay> pipelines;
  std::map<std::string, JobReplay> jobs;
  std::vector<Difference> differences;  // the first kDifferencesShown
  uint64_t difference_count = 0;
};

// Replays one pipeline after the other. Allocates memory for the chunks that the images name, as
// the box did.
FlightReplay replay(const std::vector<pbox::pipeline::FlightImage>& images);

}  // namespace pboxctl
