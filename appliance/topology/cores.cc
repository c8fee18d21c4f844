#include <algorithm>

#include "appliance/topology/steps.h"
#include "base/check.h"
#include "config/cpu_list.h"

namespace pbox::topology::steps {
namespace {

using config::OnOffAuto;

const host::Core* core_of(const host::HostFacts& facts, int cpu) {
  for (const auto& core : facts.cores) {
    if (std::find(core.cpus.begin(), core.cpus.end(), cpu) != core.cpus.end()) return &core;
  }
  return nullptr;
}

int node_of(const config::Config& config, const host::Core& core) {
  return config.pipeline.numa == OnOffAuto::kOff ? host::kUnknownNode : core.node;
}

Result<std::vector<Seat>> named_seats(const config::Config& config, const host::HostFacts& facts) {
  const auto& cores = config.pipeline.cores;
  std::vector<Seat> seats;
  std::vector<int> missing;
  std::string shared;
  for (const int cpu : cores) {
    const host::Core* core = core_of(facts, cpu);
    if (core == nullptr) {
      missing.push_back(cpu);
      continue;
    }
    for (const auto& seat : seats) {
      if (seat.core_cpus != core->cpus) continue;
      shared += "cpus " + std::to_string(seat.cpu) + " and " + std::to_string(cpu) +
                " are threads of one core; ";
    }
    seats.push_back(Seat{cpu, node_of(config, *core), core->cpus});
  }
  if (!missing.empty()) {
    return Error{ErrorCode::kInvalidArgument,
                 "pipeline.cores = " + config::print_cpu_list(cores) + ": cpus " +
                     config::print_cpu_list(missing) +
                     " do not exist or this process may not use them; choose among " +
                     config::print_cpu_list(facts.allowed_cpus) + ", or widen its cpuset"};
  }
  if (!shared.empty()) {
    return Error{ErrorCode::kInvalidArgument, "pipeline.cores = " + config::print_cpu_list(cores) +
                                                  ": " + shared + "name one cpu of each core"};
  }
  return seats;
}

}  // namespace

Result<std::vector<Seat>> usable_seats(const config::Config& config, const host::HostFacts& facts,
                                       Reasons& reasons) {
  if (facts.cores.empty()) {
    return Error{ErrorCode::kUnavailable,
                 "no usable core was found on " + facts.source + "; check the process's cpuset"};
  }
  if (config.pipeline.numa == OnOffAuto::kOff) {
    reasons.push_back(
        "pipeline.numa = off: cores, NICs and memory are taken without regard to NUMA nodes");
  }
  if (!config.pipeline.cores.empty()) {
    auto seats = named_seats(config, facts);
    if (seats) {
      reasons.push_back("pipeline.cores = " + config::print_cpu_list(config.pipeline.cores) +
                        ": pipelines run on these cpus only, and none is reserved for control");
    }
    return seats;
  }
  std::vector<Seat> seats;
  bool has_threads = false;
  for (const auto& core : facts.cores) {
    PBOX_CHECK(!core.cpus.empty());
    seats.push_back(Seat{core.cpus[0], node_of(config, core), core.cpus});
    has_threads = has_threads || core.cpus.size() > 1;
  }
  if (has_threads) {
    reasons.push_back(
        "cores have several hardware threads: one pipeline per physical core, on its first thread");
  }
  return seats;
}

Budget budget_of(const std::vector<Seat>& seats, const host::HostFacts& facts, Reasons& reasons) {
  PBOX_CHECK(!seats.empty());
  Budget budget;
  budget.core_count = seats.size();
  budget.is_small = seats.size() <= kSmallCoreCount;
  if (facts.cpu_quota > 0 && facts.cpu_quota < static_cast<double>(seats.size())) {
    budget.quota_count = std::max(1u, static_cast<uint32_t>(facts.cpu_quota));
    budget.is_small = budget.is_small || budget.quota_count <= kSmallCoreCount;
    reasons.push_back("the control group grants the CPU time of " +
                      std::to_string(budget.quota_count) + " of " + std::to_string(seats.size()) +
                      " cores: only so many count as usable");
  }
  return budget;
}

void reserve_control_cores(const config::Config& config, const Budget& budget,
                           std::vector<Seat>& seats, Reasons& reasons) {
  if (budget.core_count < kReserveFromCoreCount || !config.pipeline.cores.empty()) return;
  std::vector<Seat> kept;
  std::vector<int> nodes;
  std::vector<int> reserved;
  for (const auto& seat : seats) {
    if (std::find(nodes.begin(), nodes.end(), seat.node) == nodes.end()) {
      nodes.push_back(seat.node);
      reserved.push_back(seat.cpu);
    } else {
      kept.push_back(seat);
    }
  }
  PBOX_DCHECK(reserved.size() == nodes.size());
  if (kept.empty()) {
    reasons.push_back("pipelines need the only core of each node: none is reserved for control");
    return;
  }
  if (config.pipeline.count > kept.size()) {
    reasons.push_back("pipeline.count = " + std::to_string(config.pipeline.count) +
                      " needs every core: none is reserved for control");
    return;
  }
  PBOX_DCHECK(kept.size() + reserved.size() == seats.size());
  seats = std::move(kept);
  std::sort(reserved.begin(), reserved.end());
  reasons.push_back("one core per node is reserved for control and interrupts: cpus " +
                    config::print_cpu_list(reserved));
}

void share_cores(const config::Config& config, std::vector<Seat>& seats, Reasons& reasons) {
  const size_t core_count = seats.size();
  if (config.pipeline.pin != OnOffAuto::kOff || config.pipeline.count <= core_count ||
      config.pipeline.poll != config::PollMode::kAdaptive) {
    return;
  }
  PBOX_CHECK(core_count > 0);
  for (size_t index = 0; seats.size() < config.pipeline.count; ++index) {
    seats.push_back(Seat(seats[index]));
  }
  reasons.push_back("pipeline.count = " + std::to_string(config.pipeline.count) + " on " +
                    std::to_string(core_count) +
                    " cores, with pipeline.pin = off: pipelines share cores");
}

bool pipelines_are_pinned(const config::Config& config, const Budget& budget, Reasons& reasons) {
  PBOX_DCHECK(budget.core_count > 0);
  const std::string cores =
      std::to_string(budget.core_count) + (budget.core_count == 1 ? " core" : " cores");
  switch (config.pipeline.pin) {
    case OnOffAuto::kOn: reasons.push_back("pipeline.pin = on: pinned"); return true;
    case OnOffAuto::kOff: reasons.push_back("pipeline.pin = off: not pinned"); return false;
    case OnOffAuto::kAuto: break;
  }
  if (budget.quota_count != 0) {
    reasons.push_back(
        "pipeline.pin = auto: the control group grants CPU time, not cores: not pinned");
    return false;
  }
  if (budget.is_small && config.pipeline.poll == config::PollMode::kAdaptive) {
    reasons.push_back("pipeline.pin = auto: " + cores + " shared with other work: not pinned");
    return false;
  }
  reasons.push_back("pipeline.pin = auto: " + cores + ": each pipeline is pinned to its own");
  return true;
}

}  // namespace pbox::topology::steps
