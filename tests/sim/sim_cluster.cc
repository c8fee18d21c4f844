#include "tests/sim/sim_cluster.h"

#include <algorithm>
#include <cstdlib>

#include "base/clock.h"
#include "tests/sim/violation.h"

namespace pbox::sim {
namespace {

constexpr char kJobs[] = "jobs/";
constexpr char kDrains[] = "drains/";
// A box decides by reports that are at most this old.
constexpr uint64_t kReportsLastNs = 10 * kNanosPerSecond;

}  // namespace

SimCluster::SimCluster(EventQueue& queue, const Options& options)
    : queue_(queue), options_(options) {
  store_.watch(kJobs, 1, [this](const StoreServer::Events& events) { on_events(events); });
}

std::optional<HostId> SimCluster::owner(const JobOptions& job) const {
  if (!is_on()) return job.box;
  const auto found = maps_.find(job.name());
  if (found == maps_.end()) return std::nullopt;
  return box_at(found->second.boxes.at(job.part));
}

void SimCluster::end_drain(HostId box) {
  store_.commit({.conditions = {}, .puts = {}, .deletes = {kDrains + name_of_box(box)}}, 0);
}

void SimCluster::note_room(HostId box, uint64_t bytes) {
  auto& rooms = rooms_[box];
  std::erase_if(rooms,
                [this](const Room& room) { return room.at_ns + kReportsLastNs < queue_.now_ns(); });
  rooms.push_back({queue_.now_ns(), bytes});
}

void SimCluster::note_epoch(uint32_t epoch, const std::string& owner) {
  const auto [entry, is_new] = epochs_.emplace(epoch, owner);
  const std::string& given = entry->second;
  require(given == owner, [&] {
    return "epoch " + std::to_string(epoch) + " was assigned before: to " + given + ", now to " +
           owner;
  });
}

void SimCluster::note_draw_seed(const JobModel& job, uint64_t draw_seed) {
  const auto [known, is_new] = draw_seeds_.emplace(job.name, draw_seed);
  require(known->second == draw_seed, [&] {
    return "parts: " + job.title +
           " draws which reads wait from another seed than the other parts of its job";
  });
}

void SimCluster::on_events(const StoreServer::Events& events) {
  for (const cluster::Event& event : events) {
    const std::string job = event.entry.key.substr(sizeof(kJobs) - 1);
    if (event.deleted) {
      maps_.erase(job);
      continue;
    }
    const auto map = cluster::part_map_from_text(event.entry.value);
    require(map.has_value(), "a box commits a part map that cannot be read");
    check_parts(job, *map);
    const auto before = maps_.find(job);
    for (uint32_t part = 0; before != maps_.end() && part < map->boxes.size(); ++part) {
      const HostId from = box_at(before->second.boxes[part]), to = box_at(map->boxes[part]);
      // The map of a job that is over is planned anew for the next job of that name. If the job has
      // several parts, one of them may still run, and must then move.
      const bool begins = before->second.is_over;
      if (from == to || (begins && map->boxes.size() == 1)) continue;
      if (!begins) check_room(job, part, before->second, to);
      on_move_(job, part, from, to);
    }
    maps_[job] = *map;
  }
}

void SimCluster::check_parts(const std::string& job, const cluster::PartMap& map) const {
  const auto drawn = std::find_if(options_.jobs.begin(), options_.jobs.end(),
                                  [&](const JobOptions& options) { return job == options.name(); });
  require(drawn != options_.jobs.end() && drawn->parts == map.boxes.size(), [&] {
    return "parts: the map of " + job + " has " + std::to_string(map.boxes.size()) +
           " parts, which is not what the job has";
  });
}

// Checks that a part that has run goes only to a box that has reported room for it, or that has the
// part already: a box takes back a part that was assigned to another box but cannot move.
void SimCluster::check_room(const std::string& job, uint32_t part, const cluster::PartMap& map,
                            HostId to) const {
  const auto said = rooms_.find(to);
  if (map.part_memory_bytes == 0 || said == rooms_.end() || has_(to, job, part)) return;
  uint64_t most = 0;
  bool is_recent = false;
  for (const Room& room : said->second) {
    if (room.at_ns + kReportsLastNs < queue_.now_ns()) continue;
    is_recent = true;
    most = std::max(most, room.bytes);
  }
  require(!is_recent || most >= map.part_memory_bytes, [&] {
    return "room: " + job + "/" + std::to_string(part) + " goes to box " + std::to_string(to) +
           ", which has " + std::to_string(most) + " bytes free; the part takes " +
           std::to_string(map.part_memory_bytes);
  });
}

std::string name_of_box(HostId box) {
  return "box" + std::to_string(box);
}

std::string address_of_box(HostId box) {
  return name_of_box(box) + ":9541";
}

HostId box_at(const std::string& address_or_name) {
  return static_cast<HostId>(std::strtoul(address_or_name.c_str() + 3, nullptr, 10));
}

}  // namespace pbox::sim
