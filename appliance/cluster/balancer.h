// Measured load and moving parts: each box says every interval how long the rounds of its parts
// take, and the box that leads has a JobBalancer for each job, whose plans go to the store.
// Main thread.
#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
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
    std::string self;  // this box's name
    uint32_t interval_ms = 1'000;
    std::function<std::vector<appliance::PartProgress>()> progress;  // of what runs here
    BoxDirectory::Log log;
  };

  // All outlive the balancer.
  Balancer(boost::asio::io_context& context, Store& store, const BoxDirectory& membership,
           PartMaps& plans, Options options);
  ~Balancer() { *alive_ = false; }
  Balancer(const Balancer&) = delete;
  Balancer& operator=(const Balancer&) = delete;

  BalancingView view() const;

 private:
  struct Job {
    JobBalancer balancer;
    uint32_t idle_ticks = 0;  // nobody has said anything of it
    bool is_committing = false;
  };

  void tick();
  void publish();
  void lead();
  void step(const std::string& name, Job& job, const std::vector<BalancedBox>& boxes,
            const std::map<std::string, JobLoads>& loads);
  void carry_out(const std::string& name, const JobBalancer::Proposal& proposal);
  void note(const std::string& name, JobBalancer& balancer);
  std::vector<BalancedBox> boxes() const;

  Store& store_;
  const BoxDirectory& membership_;
  PartMaps& plans_;
  Options options_;
  boost::asio::steady_timer timer_;
  LoadMeter meter_;
  std::string published_;  // empty: the key is not there
  int64_t published_session_ = 0;
  bool is_publishing_ = false;
  std::map<std::string, Job> jobs_;  // while this box leads
  std::array<uint64_t, placement::kDecisionKindCount> decisions_{};
  uint64_t parts_moved_ = 0;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  Mirror loads_;
};

}  // namespace pbox::cluster
