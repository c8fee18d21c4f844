// The changes that PartMaps makes without a request. Each box keeps the maps of its jobs up to
// date; the leader empties boxes and deletes maps that no job needs.
#include <algorithm>
#include <utility>

#include "appliance/cluster/part_maps.h"
#include "appliance/cluster/part_maps_detail.h"
#include "base/check.h"

namespace pbox::cluster {
namespace {

constexpr std::chrono::milliseconds kUpkeepTick{250};
// A box that restarts registers again within this many ticks; one that does not loses its parts.
constexpr uint32_t kAbsentTicks = 8;
// The leader asks the other boxes for their jobs once in this many ticks.
constexpr uint32_t kReportTicks = 8;

}  // namespace

void PartMaps::tick() {
  timer_.after(kUpkeepTick, [this] {
    if (store_.health().up && entries_.loaded()) {
      update_running_jobs();
      if (options_.box_directory().leads()) {
        if (++ticks_ % kReportTicks == 0 && !maps_.empty()) with_reports(nullptr);
        evacuate_boxes();
        publish_drain_obstacles();
        delete_unused_maps();
      }
    }
    tick();
  });
}

// Leader only: moves parts off boxes that drain, and off boxes that have not been registered for a
// while.
void PartMaps::evacuate_boxes() {
  PBOX_CHECK(options_.box_directory().leads());
  std::set<std::string> absent;
  std::vector<std::pair<std::string, std::string>> leaving, fixed;  // job, box
  for (const auto& [job, map] : maps_) {
    const std::set<std::string> boxes(map.boxes.begin(), map.boxes.end());
    for (const std::string& box : boxes) {
      const bool is_absent = address_of(box).empty();
      if (is_absent) absent.insert(box);
      const bool is_gone = is_absent && absent_ticks_[box] >= kAbsentTicks;
      if (is_gone || (is_draining(box) && map.may_move)) {
        leaving.emplace_back(job, box);
      } else if (is_draining(box) && !map.is_over) {
        fixed.emplace_back(job, box);
      }
    }
  }
  for (auto entry = absent_ticks_.begin(); entry != absent_ticks_.end();) {
    entry = absent.contains(entry->first) ? std::next(entry) : absent_ticks_.erase(entry);
  }
  for (const std::string& box : absent) ++absent_ticks_[box];
  std::erase_if(obstacles_, [this](const auto& entry) { return !is_draining(entry.first); });
  for (auto& [name, obstacles] : obstacles_) {
    const std::string& box = name;  // clang 14 does not capture structured bindings
    const auto stays = [&](const std::string& job) {
      const std::pair parts(job, box);
      return std::find(leaving.begin(), leaving.end(), parts) != leaving.end() ||
             std::find(fixed.begin(), fixed.end(), parts) != fixed.end();
    };
    const size_t erased =
        std::erase_if(obstacles, [&](const auto& entry) { return !stays(entry.first); });
    if (erased > 0) unpublished_.insert(box);
  }
  for (const auto& [job, box] : fixed) {
    state_drain_obstacle(
        box, job, "job '" + job + "' stays on box " + box + " until it ends: it cannot move");
  }
  for (const auto& [job, box] : leaving) {
    if (waiting_.contains(job)) continue;
    const uint32_t version = maps_.at(job).protocol_version;
    if (candidates(job, box, version).empty()) {
      if (!is_draining(box)) continue;
      state_drain_obstacle(box, job,
                           "job '" + job + "' stays on box " + box +
                               ": no other box takes its parts" + boxes_too_old(version));
      continue;
    }
    // Parts without room elsewhere are tried again only when the boxes have reported again.
    const bool is_stuck = obstacles_.contains(box) && obstacles_[box].contains(job);
    if (is_stuck && ticks_ % kReportTicks != 0) continue;
    waiting_[job];  // marks a change in progress
    reassign_parts_of(job, box, is_draining(box) ? "it drains" : "it is no longer registered");
  }
}

void PartMaps::state_drain_obstacle(const std::string& box, const std::string& job,
                                    const std::string& obstacle) {
  if (!options_.box_directory().leads()) return;
  auto& obstacles = obstacles_[box];
  const auto known = obstacles.find(job);
  const bool is_known = known != obstacles.end();
  if (is_known ? known->second == obstacle : obstacle.empty()) return;
  if (obstacle.empty()) {
    obstacles.erase(known);
  } else {
    if (!is_known) options_.log(BoxDirectory::Severity::kWarning, "drain_stuck", obstacle);
    obstacles[job] = obstacle;
  }
  unpublished_.insert(box);
}

// Every box shows the obstacles to operators, so they go to the store. Repeated at each tick until
// the store shows them: a change of the same entry by another box, or by this one for another job,
// makes a commit fail.
void PartMaps::publish_drain_obstacles() {
  PBOX_CHECK(options_.box_directory().leads());
  for (auto box = unpublished_.begin(); box != unpublished_.end();) {
    const KeyValue* entry = drains_.find(kDrains + *box);
    DrainEntry drain = entry == nullptr ? DrainEntry{} : drain_entry_of(entry->value);
    std::string text;
    for (const auto& [job, obstacle] : obstacles_[*box]) {
      text.append(text.empty() ? "" : "; ").append(obstacle);
    }
    if (entry == nullptr || drain.obstacle == text) {
      box = unpublished_.erase(box);
      continue;
    }
    drain.obstacle = std::move(text);
    store_.commit({.conditions = {{kDrains + *box, entry->mod_revision},
                                  options_.box_directory().lead_fence()},
                   .puts = {{kDrains + *box, to_text(drain)}},
                   .deletes = {}},
                  [](const Result<Outcome>&) {});
    ++box;
  }
}

// Keeps the maps of this box's jobs up to date: whether the job is over, whether its parts may
// move, and how much memory they take.
void PartMaps::update_running_jobs() {
  for (const auto& [job, map] : maps_) {
    const bool is_here = options_.has_job(job);
    PartMap changed = map;
    if (is_here) changed.is_over = false;
    if (!is_here && ended_.contains(job)) changed.is_over = true;
    if (const auto running = options_.running(job)) {
      changed.may_move = running->may_move;
      changed.protocol_version = running->protocol_version;
      changed.part_memory_bytes = std::max(map.part_memory_bytes, running->part_memory_bytes);
    }
    if (!(changed == map)) correct(job, changed);
  }
  std::erase_if(ended_, [this](const std::string& job) {
    const PartMap* map = find(job);
    return map == nullptr || map->is_over || options_.has_job(job);
  });
}

void PartMaps::correct(const std::string& job, const PartMap& map) {
  if (waiting_.contains(job)) return;
  waiting_[job];  // marks a change in progress; later ticks handle the rest
  change(job, map, [] {});
}

// Returns whether the job has ended, or all boxes have reported and none has it. No box has the job
// if a worker asked for its map and never used it, or if all its boxes crashed and its workers are
// gone.
bool PartMaps::is_unused(const std::string& job, const PartMap& map) const {
  if (map.is_over) return true;
  if (options_.has_job(job)) return false;
  for (const BoxRecord& box : options_.box_directory().boxes()) {
    if (box.name == options_.self) continue;
    const auto report = reports_.all().find(box.name);
    if (report == reports_.all().end()) return false;
    const auto& jobs = report->second.jobs();
    if (std::find(jobs.begin(), jobs.end(), job) != jobs.end()) return false;
  }
  return true;
}

// Leader only: deletes the maps that no job has needed for a long time.
void PartMaps::delete_unused_maps() {
  PBOX_CHECK(options_.box_directory().leads());
  const auto now = environment_.now();
  std::map<std::string, Unused> unused;
  for (const auto& [job, map] : maps_) {
    if (waiting_.contains(job) || !is_unused(job, map)) continue;
    const auto known = unused_.find(job);
    const bool is_known = known != unused_.end() && known->second.revision == revision(job);
    Unused& entry = unused[job] = is_known ? known->second : Unused{revision(job), now};
    if (now - entry.since < options_.delete_after) continue;
    entry.since = now;  // if the commit fails, the next attempt comes after the same delay
    store_.commit(
        {.conditions = {{kJobs + job, entry.revision}, options_.box_directory().lead_fence()},
         .puts = {},
         .deletes = {kJobs + job}},
        [](const Result<Outcome>&) {});
  }
  unused_ = std::move(unused);
}

}  // namespace pbox::cluster
