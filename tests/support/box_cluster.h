// Boxes of one cluster with a real etcd, and a job that trains on them for as long as a test wants.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/daemon.h"
#include "tests/support/etcd_cluster.h"
#include "tests/support/worker_process.h"

namespace pbox::test {

// Asks again and again; false if it has not come true within kDeadlineMs.
bool await(const std::function<bool()>& done);

// Nothing is rebalanced unless `flags` say so.
std::unique_ptr<Daemon> start_box(const EtcdCluster& etcd, const std::string& name,
                                  const std::string& state = "none",
                                  const std::vector<std::string>& flags = {
                                      "--cluster.rebalance=false"});

nlohmann::json boxes_of(const Daemon& box);  // GET /api/v1/boxes

// Has `box` drain, or take parts again, as the box that is asked says.
void drain(const Daemon& at, const std::string& box, bool draining);

// All of `boxes` list exactly each other and name one leader among them; its name, or empty.
std::string agreed_leader(const std::vector<const Daemon*>& boxes);

class BoxCluster {
 public:
  // Starts boxes of these names and waits until they agree on who leads.
  BoxCluster(const EtcdCluster& etcd, const std::vector<std::string>& names,
             std::vector<std::string> flags = {"--cluster.rebalance=false"});

  Daemon& operator[](const std::string& name) { return *boxes_.at(name); }
  // And waits until all list it. One that was here before is at the address of before.
  void start(const std::string& name);
  void remove(const std::string& name) { boxes_.erase(name); }
  std::vector<const Daemon*> all() const;
  std::string leader() const;                   // waits until all agree on it
  std::string control() const;                  // of all boxes, as PBOX_BOX takes it
  size_t parts(const std::string& name) const;  // as any box says, which must list it

 private:
  void launch(const std::string& name);

  const EtcdCluster& etcd_;
  std::vector<std::string> flags_;
  std::map<std::string, std::string> ports_;  // of control, by name
  std::map<std::string, std::unique_ptr<Daemon>> boxes_;
};

// Ranks in processes of their own that do some rounds each time they are told to. Every element of
// every sum is checked, and is exact.
class SteadyTraining {
 public:
  struct Options {
    std::string box;
    std::string job = "training";
    uint32_t ranks = 2;
    std::vector<uint64_t> elements = {40'000};
    uint32_t rounds = 50;   // each time
    uint32_t pause_us = 0;  // between rounds, as computing would take
    std::function<void(pbox_options&)> adjust = {};
  };
  // Returns once all have joined.
  explicit SteadyTraining(const Options& options);

  void begin_rounds() const;
  void end_rounds();  // throws if one failed
  void rounds() {
    begin_rounds();
    end_rounds();
  }
  void kill() const;
  // The longest that any rank has waited for a round since rounds began last.
  double longest_round_s() const { return longest_round_s_; }

 private:
  std::vector<WorkerProcess> ranks_;
  double longest_round_s_ = 0;
};

}  // namespace pbox::test
