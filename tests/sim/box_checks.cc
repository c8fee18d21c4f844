// Checks whenever a box installs a shard, refuses a job or answers for its room.
#include <algorithm>

#include "tests/sim/box.h"
#include "tests/sim/violation.h"

namespace pbox::sim {

void Box::check_installed(uint32_t index, pipeline::JobShard& shard) {
  checker_->installed(index, shard);
  checker_->check_memory(registry_->memory_taken_bytes());
  require(checker_->bytes_on(index) <= rack_.options.arena_of(host_),
          "room: jobs hold more than a pipeline's share of the memory");
  check_slots(nullptr);
  const bool is_copy = std::none_of(rack_.jobs.begin(), rack_.jobs.end(),
                                    [&shard](const auto& job) { return job->name == shard.name; });
  if (!is_copy) check_place(shard.name, shard.part);
}

// A part that comes back is admitted as if the state that it left here took no memory. So jobs may
// hold more than the quota while the box keeps such a state.
void Box::check_quota() const {
  if (!checker_ || registry_->states_kept() > 0) return;
  require(registry_->memory_taken_bytes() <= rack_.options.memory_of(host_),
          "room: jobs hold more than the quota");
}

void Box::check_slots(const JobModel* refused) const {
  const proto::BoxReport report = registry_->report();
  const auto& jobs = report.jobs();
  const uint32_t slots = rack_.options.job_slots, taken = static_cast<uint32_t>(jobs.size());
  require(taken <= slots, "room: a box serves more jobs than it has slots");
  require(report.jobs_free() == slots - taken, [&] {
    return "room: of " + std::to_string(slots) + " job slots, " + std::to_string(taken) +
           " are taken, but the box reports " + std::to_string(report.jobs_free()) + " free";
  });
  if (refused == nullptr) return;
  const bool is_here = std::find(jobs.begin(), jobs.end(), refused->name) != jobs.end();
  require(taken == slots && !is_here, [&] {
    return "room: " + refused->title + " is refused a job slot although " +
           (is_here ? "its job has one" : "one is free");
  });
}

void Box::check_handed_back(const JobModel& job) const {
  if (!cluster_) return;
  const auto& maps = cluster_->maps();
  const auto map = maps.maps().find(job.name);
  const bool is_its = map != maps.maps().end() &&
                      box_at(map->second.boxes.at(job.options.part)) == host_ &&
                      maps.has_other_boxes(job.name);
  require(!is_its || cluster_->found_no_room(job), [&] {
    return "room: " + job.title + " is refused although no other box was asked for room";
  });
}

void Box::check_place(const std::string& job, uint32_t part) const {
  if (!cluster_) return;
  const auto map = cluster_->maps().maps().find(job);
  if (map == cluster_->maps().maps().end()) return;
  const std::string& owner = map->second.boxes.at(part);
  if (box_at(owner) == host_) return;
  // The part stays here while the box that it is to go to is not registered.
  require(!cluster_->lists(owner), [&] {
    return "parts: box " + std::to_string(host_) + " runs part " + std::to_string(part) + " of " +
           job + ", which its part map gives to " + owner;
  });
}

}  // namespace pbox::sim
