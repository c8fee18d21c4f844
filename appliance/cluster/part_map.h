// The map from the parts of a job to the boxes that own them (the value of its key jobs/NAME), and
// the functions that make and change it. Pure; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"

namespace pbox::cluster {

struct PartMap {
  uint32_t chunk_bytes = 0;
  uint64_t bytes = 0;              // size of all tensors, as stated by the worker that asked first
  bool may_move = false;           // parts can continue on another box
  bool is_over = false;            // its last rank has left; the map is kept for a while
  std::vector<std::string> boxes;  // by part: the name of its owner
  // Boxes that worked but that some worker could not reach, and boxes that had no room for a part.
  // The value is the Unix time in seconds until which they get no parts if other boxes are
  // available.
  std::map<std::string, uint64_t> avoided = {};
  // Memory of the largest part, as measured by a box that runs one; 0: no part has run yet.
  uint64_t part_memory_bytes = 0;
  // The oldest control protocol with every field that the job uses; 0: any. Parts go only to boxes
  // that speak it.
  uint32_t protocol_version = 0;
  bool operator==(const PartMap&) const = default;

  bool avoids(const std::string& box, uint64_t unix_s) const {
    const auto found = avoided.find(box);
    return found != avoided.end() && unix_s < found->second;
  }
  double bytes_per_part() const {
    PBOX_CHECK(!boxes.empty());
    return static_cast<double>(bytes) / static_cast<double>(boxes.size());
  }
  // Returns how much memory a part takes at a box; a lower bound until a part has run.
  uint64_t memory_per_part() const;
};

// Convert a part map to one line of JSON and back. part_map_from_text() returns nullopt if the text
// is not a part map.
std::string to_text(const PartMap& map);
std::optional<PartMap> part_map_from_text(const std::string& text);

// A box that parts may be assigned to.
struct CandidateBox {
  std::string name = {};
  uint32_t pipelines = 1;
  double bytes_per_second = 0;  // 0: unknown, counted as the mean of the known rates
  double bytes = 0;             // bytes per round of the parts that it already owns
  // Room for more parts.
  uint64_t memory_free_bytes = UINT64_MAX;
  uint32_t parts_free = UINT32_MAX;
  uint64_t largest_part_bytes = UINT64_MAX;  // the largest part that one pipeline has memory for
};

// Several parts per pipeline, so that moving one part takes less than half of a pipeline's load.
inline constexpr uint32_t kPartsPerPipeline = 4;

// Makes the part map of a new job over `boxes`, which must not be empty. Each part goes to the box
// that would then finish first (placement/place.h), among those that have room for it. If the job
// does not fit, the parts are assigned without regard to room, and the box that refuses a part says
// what is missing.
PartMap make_part_map(uint64_t bytes, uint32_t chunk_bytes, std::vector<CandidateBox> boxes);

// Returns `map` with the parts of box `from` reassigned to the boxes `to`, which must not contain
// `from`. A part that has no room on any of them stays where it is.
PartMap reassign_parts(PartMap map, const std::string& from, std::vector<CandidateBox> to);

// Returns `map` with one part reassigned to one of the boxes `to`; nullopt if none has room.
std::optional<PartMap> reassign_part(PartMap map, uint32_t part, std::vector<CandidateBox> to);

// Returns how many parts of the map fit on the box.
uint64_t parts_that_fit(const PartMap& map, const CandidateBox& box);

// Returns the bytes per round that the part maps assign to each box, by box name.
std::map<std::string, double> bytes_by_box(const std::vector<PartMap>& maps);

}  // namespace pbox::cluster
