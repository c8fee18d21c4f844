// Finds boxes that have room for parts, and hands back a part for which this box has no room.
#include <algorithm>
#include <utility>

#include "appliance/cluster/part_maps.h"
#include "appliance/cluster/part_maps_detail.h"
#include "base/check.h"

namespace pbox::cluster {
namespace {

// A part that no box has room for is not handed back again for this long.
constexpr std::chrono::seconds kNoRoomFor{10};

}  // namespace

CandidateBox PartMaps::candidate(const BoxRecord& record, const std::string& job) const {
  CandidateBox box{.name = record.name,
                   .pipelines = static_cast<uint32_t>(record.data.size()),
                   .bytes_per_second = static_cast<double>(record.capacity_bytes_per_s)};
  proto::BoxReport report;
  if (record.name == options_.self) {
    report = options_.report();
  } else if (const auto found = reports_.all().find(record.name); found != reports_.all().end()) {
    report = found->second;
  }
  if (report.has_memory_free_bytes()) box.memory_free_bytes = report.memory_free_bytes();
  if (report.has_parts_free()) box.parts_free = report.parts_free();
  if (report.has_largest_part_bytes()) box.largest_part_bytes = report.largest_part_bytes();
  const bool has_job =
      std::find(report.jobs().begin(), report.jobs().end(), job) != report.jobs().end();
  if (report.has_jobs_free() && report.jobs_free() == 0 && !has_job) box.parts_free = 0;
  return box;
}

bool PartMaps::can_serve(const std::string& box, const PartMap& map) const {
  const BoxRecord* record = options_.box_directory().last_record(box);
  return record == nullptr || record->can_serve(map.protocol_version);
}

std::string PartMaps::boxes_too_old(uint32_t version) const {
  std::string text;
  for (const BoxRecord& box : options_.box_directory().boxes()) {
    if (box.can_serve(version)) continue;
    text += (text.empty() ? "; not counted because of their release: " : ", ") + box.name + " (" +
            box.version + ", control protocol " + std::to_string(box.protocol_version) + ")";
  }
  return text;
}

std::vector<CandidateBox> PartMaps::candidates(const std::string& job, const std::string& excluded,
                                               uint32_t version, const PartMap* job_map) const {
  std::vector<PartMap> maps;
  for (const auto& [name, map] : maps_) {
    if (!map.is_over) maps.push_back(map);
  }
  const auto bytes = bytes_by_box(maps);
  std::vector<CandidateBox> boxes;
  size_t wanted = 0;  // number of boxes, at the front of `boxes`, that answer and are not avoided
  for (const BoxRecord& record : options_.box_directory().boxes()) {
    if (record.name == excluded || is_draining(record.name)) continue;
    if (!record.can_serve(version)) continue;
    const auto found = bytes.find(record.name);
    boxes.push_back(candidate(record, job));
    boxes.back().bytes = found == bytes.end() ? 0 : found->second;
    const bool is_avoided =
        job_map != nullptr && job_map->avoids(record.name, environment_.unix_seconds());
    if (is_avoided || reports_.is_silent(record.name)) continue;
    std::swap(boxes[wanted++], boxes.back());
  }
  if (wanted > 0) boxes.resize(wanted);
  return boxes;
}

void PartMaps::with_reports(std::function<void()> then) {
  std::vector<BoxRecord> others = options_.box_directory().boxes();
  std::erase_if(others, [this](const BoxRecord& box) { return box.name == options_.self; });
  reports_.ask(others, std::move(then));
}

// Returns whether the map of an ended job can serve a new job of the same name. It can if the size
// is equal, and every box in the map still takes parts and has room.
bool PartMaps::can_be_reused(const PartMap& map, const proto::AskPartMap& question) const {
  if (!map.is_over || map.bytes != question.bytes()) return false;
  std::map<std::string, uint64_t> wanted;
  for (const std::string& box : map.boxes) ++wanted[box];
  const auto boxes = candidates(question.job(), "", question.job_version());
  return std::all_of(wanted.begin(), wanted.end(), [&](const auto& entry) {
    return std::any_of(boxes.begin(), boxes.end(), [&](const CandidateBox& box) {
      return box.name == entry.first && parts_that_fit(map, box) >= entry.second;
    });
  });
}

// The job then avoids this box for a while, so each box hands back a part that has room nowhere at
// most once.
bool PartMaps::hand_back(const std::string& job, uint32_t part) {
  const PartMap* map = find(job);
  if (map == nullptr || part >= map->boxes.size() || map->boxes[part] != options_.self) {
    return false;
  }
  const auto refused = no_room_.find({job, part});
  if (refused != no_room_.end() && environment_.now() < refused->second) return false;
  if (!has_other_boxes(job)) return false;
  if (waiting_.contains(job)) return true;  // a change is in progress
  waiting_[job];                            // marks a change in progress
  with_reports([this, job, part] { hand_back_now(job, part); });
  return true;
}

void PartMaps::hand_back_now(const std::string& job, uint32_t part) {
  PBOX_CHECK(waiting_.contains(job));
  const PartMap* map = find(job);
  const bool is_here =
      map != nullptr && part < map->boxes.size() && map->boxes[part] == options_.self;
  if (!is_here) {
    return answer_all(job, unavailable("the part map of job '" + job + "' was changed meanwhile"));
  }
  auto boxes = candidates(job, options_.self, map->protocol_version, map);
  std::erase_if(boxes, [&](const CandidateBox& box) {
    return map->avoids(box.name, environment_.unix_seconds()) || reports_.is_silent(box.name);
  });
  auto changed = reassign_part(*map, part, std::move(boxes));
  if (!changed) {
    no_room_[{job, part}] = environment_.now() + kNoRoomFor;
    const std::string what = "part " + std::to_string(part) + " of job '" + job +
                             "' has room neither here nor on any other box";
    options_.log(BoxDirectory::Severity::kWarning, "no_room", what);
    return answer_all(job, unavailable(what));
  }
  changed->avoided[options_.self] = environment_.unix_seconds() + kAvoidS;
  change(job, *changed, [this, job, part, to = changed->boxes[part]] {
    options_.log(BoxDirectory::Severity::kWarning, "part_handed_back",
                 "part " + std::to_string(part) + " of job '" + job +
                     "' has no room here and goes to box " + to);
  });
}

std::optional<std::string> PartMaps::lacks_room(const std::string& job, const PartMap& map) const {
  const PartMap* now = find(job);
  if (now == nullptr || now->boxes.size() != map.boxes.size()) return "the part map has changed";
  std::map<std::string, uint64_t> wanted;
  for (size_t part = 0; part < map.boxes.size(); ++part) {
    if (map.boxes[part] != now->boxes[part]) ++wanted[map.boxes[part]];
  }
  for (const BoxRecord& record : options_.box_directory().boxes()) {
    const auto found = wanted.find(record.name);
    if (found == wanted.end()) continue;
    const uint64_t fit = parts_that_fit(*now, candidate(record, job));
    if (fit >= found->second) continue;
    return "box " + record.name + " has room for " + std::to_string(fit) + " more parts, not for " +
           std::to_string(found->second);
  }
  return std::nullopt;
}

}  // namespace pbox::cluster
