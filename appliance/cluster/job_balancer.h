// Rebalancing of one job, at the box that leads: what the boxes say of its rounds goes into the
// rebalancer (placement/rebalancer.h), whose chunks are here the parts of the job; what it proposes
// comes out as a plan. Pure; one thread at a time.
//
// A plan that somebody else changed (a box was lost, or drains) begins it anew; decisions stay.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "appliance/cluster/balance_view.h"
#include "appliance/cluster/job_load.h"
#include "appliance/cluster/part_map.h"
#include "appliance/placement/rebalancer.h"

namespace pbox::cluster {

struct BalancedBox {
  std::string name;
  double bytes_per_second = 0;  // declared; 0: not known
  bool takes_parts = true;      // it is there, and does not drain
};

class JobBalancer {
 public:
  JobBalancer(std::string job, uint64_t seed) : job_(std::move(job)), seed_(seed) {}

  // To be called every interval with the plan as it is, all boxes that are there, and what each of
  // them said last. The plan that comes back, with its reason, is to be carried out, and then
  // committed() or refused() to be called before the next step.
  struct Proposal {
    PartMap plan;
    size_t moves = 0;
    std::string kind, reason;
  };
  std::optional<Proposal> step(const PartMap& plan, int64_t plan_revision,
                               const std::vector<BalancedBox>& boxes,
                               const std::map<std::string, JobLoads>& loads, uint64_t unix_s);
  void committed();
  void refused(const std::string& why, uint64_t unix_s);

  BalanceView view() const;
  // Since the last call, oldest first.
  std::vector<BalanceDecision> take_decisions() { return std::exchange(fresh_, {}); }

 private:
  void begin(const PartMap& plan, const std::vector<BalancedBox>& boxes);
  void follow(const std::vector<BalancedBox>& boxes);
  std::optional<std::string> obstacle(const PartMap& plan,
                                      const std::vector<BalancedBox>& boxes) const;
  std::optional<placement::Observation> observation(const PartMap& plan, int64_t plan_revision,
                                                    const std::map<std::string, JobLoads>& loads);
  void measure_gain(const placement::Observation& seen);
  void collect(uint64_t unix_s);
  size_t index_of(const std::string& box) const;

  std::string job_;
  uint64_t seed_;
  std::optional<placement::Rebalancer> rebalancer_;
  std::vector<std::string> parts_;          // the box of each part, as the rebalancer has it
  std::optional<PartMap> proposed_;         // out
  std::vector<std::string> names_;          // of the rebalancer's boxes
  std::vector<bool> takes_parts_;           // of the same
  std::map<std::string, uint64_t> rounds_;  // by box: of the load that was used last
  std::vector<double> busy_seconds_;        // by box, as said last
  double pause_seconds_ = 0;                // the longest that a box tells of
  std::string waits_for_;
  uint32_t steps_without_ = 0;  // an observation, since the last one
  double iteration_seconds_ = 0;
  std::deque<double> recent_;  // iteration times under the map as it is
  double before_seconds_ = 0;  // the mean of those before the last plan
  std::optional<double> last_gain_;
  uint64_t observations_ = 0;
  uint64_t parts_moved_ = 0;
  uint64_t collected_ = 0;  // decisions of rebalancer_ that are in decisions_
  std::deque<BalanceDecision> decisions_;
  std::vector<BalanceDecision> fresh_;
};

}  // namespace pbox::cluster
