// Checks that run when a box installs a shard, refuses a job or reports its room.
#include <algorithm>

#include "tests/sim/box.h"
#include "tests/sim/violation.h"

namespace pbox::sim {
namespace {

// Returns whether a part of a snapshot has this optimizer state, after the same number of steps.
bool has_state(const JobModel& job, const snapshot::Restored& part, uint32_t chunk,
               const Oracle::State& state) {
  return std::any_of(part.chunks.begin(), part.chunks.end(), [&](const auto& saved) {
    if (saved.chunk != chunk) return false;
    const Oracle::State in_part = job.saved_state(saved);
    return in_part.steps == state.steps && in_part.optimizer_state == state.optimizer_state;
  });
}

}  // namespace

void Box::check_installed(uint32_t index, pipeline::JobShard& shard) {
  checker_->installed(index, shard);
  checker_->check_memory(registry_->memory_taken_bytes());
  require(checker_->bytes_on(index) <= rack_.options.arena_of(host_),
          "room: jobs hold more than a pipeline's share of the memory");
  check_slots(nullptr);
  check_adopted(shard);
  const bool is_copy = std::none_of(rack_.jobs.begin(), rack_.jobs.end(),
                                    [&shard](const auto& job) { return job->name == shard.name; });
  if (!is_copy) check_place(shard.name, shard.part);
}

// Checks that a part whose weights come from its ranks continues with the optimizer state of the
// snapshot that the box has read, if it has read one.
void Box::check_adopted(const pipeline::JobShard& shard) {
  const auto found = std::find_if(rack_.jobs.begin(), rack_.jobs.end(), [&shard](const auto& job) {
    return job->name == shard.name && job->options.part == shard.part;
  });
  if (found == rack_.jobs.end() || !(*found)->options.has_snapshots) return;
  JobModel& job = **found;
  const uint64_t number = snapshots_->loaded(shard.name, shard.part);
  const snapshot::Restored* from = rack_.snapshots->find(shard.name, shard.part, number);
  const size_t floats = optimizer::state_floats_per_element(shard.optimizer.kind);
  for (const pipeline::Chunk& chunk : shard.chunks()) {
    job.adopted.erase(chunk.id);
    if (chunk.copy_rank == pipeline::kNoRank || chunk.sync != nullptr) continue;
    const uint64_t steps = chunk.first_round - chunk.stateless_round;
    const float* values = chunk.optimizer_state;
    Oracle::State state{.weights = {}, .optimizer_state = {}, .steps = steps};
    if (floats > 0) state.optimizer_state.assign(values, values + floats * chunk.elements);
    require(number == 0 || has_state(job, *from, chunk.id, state), [&] {
      return job.title + " chunk " + std::to_string(chunk.id) +
             ": the optimizer does not go on with the state of snapshot " + std::to_string(number);
    });
    if (steps == 0) continue;
    rack_.counts.add(Fault::kSnapshotUsed);
    job.adopted[chunk.id] = std::move(state);
  }
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
