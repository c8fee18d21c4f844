// Which box has which part of a job: the value of its key jobs/NAME, and how it is made and
// changed. Pure; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace pbox::cluster {

struct PartMap {
  uint32_t chunk_bytes = 0;
  uint64_t bytes = 0;              // of all tensors, as the worker said that asked first
  bool may_move = false;           // parts can go on at another box
  bool is_over = false;            // its last rank has left; kept for a while
  std::vector<std::string> boxes;  // by part: the name of the box that has it
  // Boxes that some worker could not reach though others could: they get no parts until that Unix
  // time, in seconds, if there are others.
  std::map<std::string, uint64_t> avoided = {};
  bool operator==(const PartMap&) const = default;

  bool avoids(const std::string& box, uint64_t unix_s) const {
    const auto found = avoided.find(box);
    return found != avoided.end() && unix_s < found->second;
  }
  double bytes_per_part() const {
    return static_cast<double>(bytes) / static_cast<double>(boxes.size());
  }
};

// JSON in one line. from_text: nothing if it is no plan.
std::string to_text(const PartMap& plan);
std::optional<PartMap> part_map_from_text(const std::string& text);

// A box that parts may be put on.
struct CandidateBox {
  std::string name = {};
  uint32_t pipelines = 1;
  double bytes_per_second = 0;  // 0: not known, then as the mean of those that are
  double bytes = 0;             // a round's, of the parts that it has already
};

// So many parts that each pipeline has several, and can be relieved of one without losing half.
inline constexpr uint32_t kPartsPerPipeline = 4;

// The parts of a job that is new, over `boxes`, which are not empty: each onto the box that is then
// done first (placement/place.h).
PartMap make_plan(uint64_t bytes, uint32_t chunk_bytes, std::vector<CandidateBox> boxes);

// The same with the parts of `from` given to `to`, which are not empty and do not hold it.
PartMap give_away(PartMap plan, const std::string& from, std::vector<CandidateBox> to);

// A round's bytes that plans put on each box, by name.
std::map<std::string, double> bytes_by_box(const std::vector<PartMap>& plans);

}  // namespace pbox::cluster
