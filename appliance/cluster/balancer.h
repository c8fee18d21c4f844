// Rebalances jobs by measured load. In each interval every box measures how long the rounds of its
// parts take, and the leader asks every box for the result. The leader runs one JobBalancer per job
// and commits the resulting part maps to the store. Main thread.
#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "appliance/cluster/job_balancer.h"
#include "appliance/cluster/part_maps.h"

namespace pbox::cluster {

class Balancer {
 public:
  struct Options {
    std::string self;  // name of this box
    uint32_t interval_ms = 1'000;
    // Progress of the parts that run on this box.
    std::function<std::vector<control::PartProgress>()> progress;
    BoxDirectory::Log log;
  };

  // All arguments passed by reference outlive the balancer.
  Balancer(boost::asio::io_context& context, Store& store, const BoxDirectory& box_directory,
           PartMaps& maps, Options options);
  ~Balancer() { *alive_ = false; }
  Balancer(const Balancer&) = delete;
  Balancer& operator=(const Balancer&) = delete;

  BalancingView view() const;
  // Loads of the parts that run on this box, as of the last interval.
  const JobLoads& loads() const { return own_loads_; }

 private:
  struct Job {
    JobBalancer balancer;
    uint32_t idle_ticks = 0;  // intervals since any box last reported the job
    bool is_committing = false;
  };

  void tick();
  void measure();
  void lead();
  void step(const std::string& name, Job& job, const std::vector<BalancedBox>& boxes,
            const std::map<std::string, JobLoads>& loads);
  void commit(const std::string& name, const JobBalancer::Proposal& proposal);
  void log_decisions(const std::string& name, JobBalancer& balancer);
  std::vector<BalancedBox> boxes() const;

  Store& store_;
  const BoxDirectory& box_directory_;
  PartMaps& part_maps_;
  Options options_;
  Environment& environment_;
  Timer timer_;
  LoadMeter meter_;
  JobLoads own_loads_;
  std::map<std::string, Job> jobs_;  // empty unless this box leads
  std::array<uint64_t, placement::kDecisionKindCount> decisions_{};
  uint64_t parts_moved_ = 0;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace pbox::cluster
