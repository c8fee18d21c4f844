#include "appliance/cluster/balancer.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "base/check.h"

namespace pbox::cluster {
namespace {

// A job that no box has reported for this many intervals has ended.
constexpr uint32_t kIdleTicks = 20;

}  // namespace

Balancer::Balancer(boost::asio::io_context& context, Store& store,
                   const BoxDirectory& box_directory, PartMaps& maps, Options options)
    : store_(store),
      box_directory_(box_directory),
      part_maps_(maps),
      options_(std::move(options)),
      environment_(Environment::of(context)),
      timer_(context) {
  PBOX_CHECK(options_.progress != nullptr && options_.log != nullptr);
  tick();
}

void Balancer::tick() {
  timer_.after(std::chrono::milliseconds(options_.interval_ms), [this] {
    measure();
    if (box_directory_.leads() && store_.health().up) {
      lead();
    } else if (!box_directory_.leads()) {
      jobs_.clear();
    }
    tick();
  });
}

void Balancer::measure() {
  own_loads_ = meter_.measure(
      options_.progress(), [this](const std::string& job) -> std::optional<LoadMeter::Assignment> {
        const auto map = part_maps_.maps().find(job);
        if (map == part_maps_.maps().end()) return std::nullopt;
        const auto& boxes = map->second.boxes;
        const auto parts = std::count(boxes.begin(), boxes.end(), options_.self);
        return LoadMeter::Assignment{part_maps_.revision(job), static_cast<size_t>(parts)};
      });
}

std::vector<BalancedBox> Balancer::boxes() const {
  std::vector<BalancedBox> boxes;
  for (const BoxRecord& record : box_directory_.boxes()) {
    boxes.push_back({record.name, static_cast<double>(record.capacity_bytes_per_s),
                     !part_maps_.is_draining(record.name)});
  }
  return boxes;
}

void Balancer::lead() {
  std::vector<BoxRecord> others = box_directory_.boxes();
  std::erase_if(others, [this](const BoxRecord& box) { return box.name == options_.self; });
  part_maps_.reports().ask(others);
  std::map<std::string, JobLoads> loads;
  for (const auto& [box, report] : part_maps_.reports().all()) loads[box] = loads_of(report);
  loads[options_.self] = own_loads_;
  std::set<std::string> running;
  for (const auto& [box, box_loads] : loads) {
    for (const auto& [job, load] : box_loads) running.insert(job);
  }
  for (const std::string& name : running) {
    const uint64_t seed = std::hash<std::string>{}(name);
    jobs_.try_emplace(name, Job{JobBalancer(name, seed)}).first->second.idle_ticks = 0;
  }
  for (auto& [name, job] : jobs_) ++job.idle_ticks;
  std::erase_if(jobs_, [](const auto& entry) {
    return entry.second.idle_ticks > kIdleTicks && !entry.second.is_committing;
  });
  const auto boxes = this->boxes();
  for (auto& [name, job] : jobs_) {
    if (!job.is_committing) step(name, job, boxes, loads);
  }
}

void Balancer::step(const std::string& name, Job& job, const std::vector<BalancedBox>& boxes,
                    const std::map<std::string, JobLoads>& loads) {
  PBOX_DCHECK(!job.is_committing);
  const auto map = part_maps_.maps().find(name);
  if (map == part_maps_.maps().end()) return;
  auto job_boxes = boxes;
  for (BalancedBox& box : job_boxes) {
    box.takes_parts = box.takes_parts &&
                      !map->second.avoids(box.name, environment_.unix_seconds()) &&
                      part_maps_.can_serve(box.name, map->second);
  }
  const auto proposal = job.balancer.step(map->second, part_maps_.revision(name), job_boxes, loads,
                                          environment_.unix_seconds());
  log_decisions(name, job.balancer);
  if (!proposal) return;
  if (const auto why = part_maps_.lacks_room(name, proposal->map)) {
    job.balancer.refused(*why, environment_.unix_seconds());
    return log_decisions(name, job.balancer);
  }
  commit(name, *proposal);
}

void Balancer::commit(const std::string& name, const JobBalancer::Proposal& proposal) {
  Job& committing = jobs_.at(name);
  PBOX_CHECK(!committing.is_committing);
  committing.is_committing = true;
  part_maps_.move(name, proposal.map, proposal.kind + ", " + proposal.reason,
                  [this, alive = alive_, name, moves = proposal.moves](const Status& status) {
                    if (!*alive) return;
                    const auto job = jobs_.find(name);
                    if (status) parts_moved_ += moves;
                    if (job == jobs_.end()) return;
                    job->second.is_committing = false;
                    if (status) return job->second.balancer.committed();
                    job->second.balancer.refused(status.error().message,
                                                 environment_.unix_seconds());
                    log_decisions(name, job->second.balancer);
                  });
}

void Balancer::log_decisions(const std::string& name, JobBalancer& balancer) {
  for (const BalanceDecision& decision : balancer.take_decisions()) {
    ++decisions_[static_cast<size_t>(decision.kind)];
    if (decision.repeats) continue;
    options_.log(
        BoxDirectory::Severity::kInfo, "rebalance",
        "job '" + name + "': " + placement::to_string(decision.kind) + ": " + decision.reason);
  }
}

BalancingView Balancer::view() const {
  BalancingView view{.enabled = true,
                     .leads = box_directory_.leads(),
                     .decisions = decisions_,
                     .parts_moved = parts_moved_};
  for (const auto& [name, job] : jobs_) view.jobs.push_back(job.balancer.view());
  return view;
}

}  // namespace pbox::cluster
