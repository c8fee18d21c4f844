#include "tests/sim/sim_part_directory.h"

#include <algorithm>
#include <cstdlib>

#include "base/clock.h"

namespace pbox::sim {
namespace {

constexpr uint64_t kHearsWithinNs = 300 * kNanosPerMilli;

}  // namespace

SimPartDirectory::SimPartDirectory(EventQueue& queue, const Options& options)
    : queue_(queue), latency_ns_(options.latency_ns), rng_(options.seed ^ 0x70617274ull) {
  for (size_t index = 0; index < options.jobs.size(); ++index) {
    const JobOptions& job = options.jobs[index];
    jobs_["job" + std::to_string(index)] = {job.box, job.may_move, {job.box}};
  }
}

void SimPartDirectory::attach(HostId box, std::function<void()> on_change) {
  views_[box].on_change = std::move(on_change);
}

std::optional<HostId> SimPartDirectory::known_owner(HostId box, const std::string& name) const {
  const Job& job = jobs_.at(name);
  if (!job.may_move) return job.owner;
  const View& view = views_.at(box);
  const auto heard = view.revisions.find(name);
  if (heard == view.revisions.end()) return std::nullopt;
  return job.history[heard->second];
}

void SimPartDirectory::forget(HostId box) {
  View& view = views_[box];
  view.revisions.clear();
  ++view.starts;
  for (const auto& [name, job] : jobs_) {
    if (job.may_move) tell(box, name);
  }
}

void SimPartDirectory::move(const std::string& name, HostId to) {
  Job& job = jobs_.at(name);
  if (job.owner == to) return;
  job.owner = to;
  job.history.push_back(to);
  ++moves_;
  for (const auto& [box, view] : views_) tell(box, name);
}

void SimPartDirectory::cut_off(HostId box, uint64_t until_ns) {
  views_[box].cut_off_until_ns = std::max(views_[box].cut_off_until_ns, until_ns);
}

void SimPartDirectory::tell(HostId box, const std::string& name) {
  const View& view = views_[box];
  const size_t revision = jobs_.at(name).history.size() - 1;
  const uint64_t due_ns = std::max(queue_.now_ns(), view.cut_off_until_ns) + latency_ns_ +
                          (rng_.below(2) == 0 ? 0 : rng_.below(kHearsWithinNs));
  queue_.at(due_ns, [this, box, name, revision, starts = view.starts] {
    View& hearing = views_[box];
    if (hearing.starts != starts) return;  // another process has started since
    const auto known = hearing.revisions.find(name);
    if (known != hearing.revisions.end() && known->second >= revision) return;
    hearing.revisions[name] = revision;
    hearing.on_change();
  });
}

std::string address_of_box(HostId box) {
  return "box" + std::to_string(box) + ":9541";
}

HostId box_at(const std::string& address) {
  return static_cast<HostId>(std::strtoul(address.c_str() + 3, nullptr, 10));
}

}  // namespace pbox::sim
