// Rebalances one job, on the leader. Feeds what the boxes report about the job's rounds to the
// rebalancer (placement/rebalancer.h), to which it presents the job's parts as chunks, and turns
// the proposals into part maps. Pure; one thread at a time.
//
// If another party changes the part map (a box was lost, or drains), a new rebalancer starts; the
// list of decisions is kept.
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
  double bytes_per_second = 0;  // declared rate; 0: unknown
  bool takes_parts = true;      // false: it drains, is avoided by the job, or cannot serve it
};

class JobBalancer {
 public:
  JobBalancer(std::string job, uint64_t seed) : job_(std::move(job)), seed_(seed) {}

  // Must be called once per interval with the current part map, all registered boxes and the last
  // load that each of them reported. The caller must commit the proposal that comes back, if any,
  // and then call committed() or refused() before the next step().
  struct Proposal {
    PartMap map;
    size_t moves = 0;
    std::string kind, reason;
  };
  std::optional<Proposal> step(const PartMap& map, int64_t map_revision,
                               const std::vector<BalancedBox>& boxes,
                               const std::map<std::string, JobLoads>& loads, uint64_t unix_s);
  // Sets RebalancerOptions::explore_share for the next rebalancer, which starts when the map has
  // changed in a way that this object has not proposed.
  void set_explore_share(double share) { explore_share_ = share; }
  void committed();
  void refused(const std::string& why, uint64_t unix_s);

  BalanceView view() const;
  // Returns the decisions made since the last call, oldest first.
  std::vector<BalanceDecision> take_decisions() { return std::exchange(fresh_, {}); }

 private:
  void begin(const PartMap& map, const std::vector<BalancedBox>& boxes);
  void follow(const std::vector<BalancedBox>& boxes);
  std::optional<std::string> obstacle(const PartMap& map,
                                      const std::vector<BalancedBox>& boxes) const;
  std::optional<placement::Observation> observation(const PartMap& map, int64_t map_revision,
                                                    const std::map<std::string, JobLoads>& loads);
  void measure_gain(const placement::Observation& seen);
  void collect(uint64_t unix_s);
  size_t index_of(const std::string& box) const;

  std::string job_;
  uint64_t seed_;
  double explore_share_ = placement::RebalancerOptions().explore_share;
  std::optional<placement::Rebalancer> rebalancer_;
  std::vector<std::string> parts_;          // box of each part, as the rebalancer knows it
  std::optional<PartMap> proposed_;         // proposed and not yet observed
  std::vector<std::string> names_;          // names of the rebalancer's boxes, by index
  std::vector<bool> takes_parts_;           // whether each of these boxes takes parts
  std::map<std::string, uint64_t> rounds_;  // by box: `rounds` of the load that was used last
  std::vector<double> busy_seconds_;        // by box, as last reported
  double pause_seconds_ = 0;                // longest pause that any box reports
  std::string waits_for_;
  uint32_t steps_without_ = 0;  // steps since the last observation
  double iteration_seconds_ = 0;
  std::deque<double> recent_;  // newest iteration times under the current part map
  double before_seconds_ = 0;  // mean iteration time before the last change of the map; 0: unknown
  std::optional<double> last_gain_;
  uint64_t observations_ = 0;
  uint64_t parts_moved_ = 0;
  uint64_t collected_ = 0;  // decisions of rebalancer_ that have been copied into decisions_
  std::deque<BalanceDecision> decisions_;
  std::vector<BalanceDecision> fresh_;
};

}  // namespace pbox::cluster
