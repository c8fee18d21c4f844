// Moves of parts between boxes, and of chunks between the pipelines of a box.
#include <algorithm>

#include "base/rng.h"
#include "tests/sim/violation.h"
#include "tests/sim/world.h"

namespace pbox::sim {

// Asks the leader to move a part, as the rebalancer does. The part may go to a box whose lease has
// ended, as happens when the leader has not heard of that yet.
void World::move_part(const Episode& episode) {
  const JobModel& job = worker_of(episode.draw).job();
  BoxCluster* leader = leaders_cluster();
  if (!job.options.may_move || leader == nullptr) return;
  cluster::PartMaps& maps = leader->maps();
  const auto found = maps.maps().find(job.name);
  if (found == maps.maps().end() || found->second.is_over) return;
  cluster::PartMap map = found->second;
  std::string& box = map.boxes[job.options.part];
  const HostId step = 1 + static_cast<HostId>((episode.draw >> 32) % (options_.boxes - 1));
  box = name_of_box((box_at(box) + step) % options_.boxes);
  if (maps.lacks_room(job.name, map) || maps.is_draining(box)) return;
  const bool needs_room = options_.is_tight && map.part_memory_bytes > 0;
  if (needs_room && !leader->knows_room(box)) return;
  maps.move(job.name, map, "an episode", [](const Status&) {});
}

// Notes that all ranks of a moved part must join again. Ranks that are away during the move must be
// back before the job can continue.
void World::gather_part_again(const std::string& name, uint32_t part) {
  for (auto& job : jobs_) {
    if (job->name == name && job->options.part == part) gather_again(*job, are_all_in(*job));
  }
}

void World::on_move(const std::string& name, uint32_t part, HostId from, HostId to) {
  rack_.say("world", [&] {
    return name + "/" + std::to_string(part) + " moves from box " + std::to_string(from) +
           " to box " + std::to_string(to);
  });
  counts_.add(Fault::kPartMove);
  gather_part_again(name, part);
}

// Lets a box move some groups of chunks of one of its parts to other pipelines, as its balancer
// does.
void World::move_chunks(const ChunkMove& move) {
  Box& box = *boxes_[move.box];
  if (!box.up()) return;
  auto parts = box.progress();
  std::erase_if(parts, [this](const control::PartProgress& part) {  // a rogue does not rejoin
    return std::any_of(jobs_.begin(), jobs_.end(), [&](const auto& job) {
      return job->name == part.job && job->options.rogue;
    });
  });
  if (parts.empty()) return;
  Rng rng(move.draw);
  const control::PartProgress& part = parts[rng.below(parts.size())];
  std::vector<uint32_t> groups = part.group_pipelines;
  for (uint32_t& pipeline : groups) {
    if (rng.below(2) == 0) pipeline = static_cast<uint32_t>(rng.below(options_.pipelines));
  }
  if (groups == part.group_pipelines) return;
  const Status moved = box.move_chunks(part.job, part.part, groups);
  const bool has_no_room = !moved && moved.error().code == ErrorCode::kResourceExhausted;
  require(!has_no_room || options_.is_tight, [&] {
    return part.job + ": chunks could not move to other pipelines: " + moved.error().message;
  });
  if (!moved) return;
  counts_.add(Fault::kChunkMove);
  gather_part_again(part.job, part.part);
}

}  // namespace pbox::sim
