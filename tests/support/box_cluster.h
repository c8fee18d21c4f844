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

// Polls `done`; returns false if it has not become true within kDeadlineMs.
bool await(const std::function<bool()>& done);

// Starts a box. With the default `flags` it does not rebalance.
std::unique_ptr<Daemon> start_box(const EtcdCluster& etcd, const std::string& name,
                                  const std::string& state = "none",
                                  const std::vector<std::string>& flags = {
                                      "--cluster.rebalance=false"});

nlohmann::json boxes_of(const Daemon& box);  // GET /api/v1/boxes

// Asks the box `at` to drain `box`, or to end its drain.
void drain(const Daemon& at, const std::string& box, bool draining);

// Returns the leader if `boxes` list exactly each other and agree on it; otherwise an empty string.
std::string agreed_leader(const std::vector<const Daemon*>& boxes);

class BoxCluster {
 public:
  // Starts boxes with these names and waits until they agree on a leader.
  BoxCluster(const EtcdCluster& etcd, const std::vector<std::string>& names,
             std::vector<std::string> flags = {"--cluster.rebalance=false"});

  Daemon& operator[](const std::string& name) { return *boxes_.at(name); }
  // Starts a box and waits until all boxes list it. A box that ran before keeps its address.
  void start(const std::string& name);
  void remove(const std::string& name) { boxes_.erase(name); }
  std::vector<const Daemon*> all() const;
  std::string leader() const;   // waits until all agree on it
  std::string control() const;  // the control addresses of all boxes, in the form of PBOX_BOX
  // Returns how many parts the box has, as the first box reports it. Throws if `name` is not
  // listed.
  size_t parts(const std::string& name) const;

 private:
  void launch(const std::string& name);

  const EtcdCluster& etcd_;
  std::vector<std::string> flags_;
  std::map<std::string, std::string> ports_;  // control ports, by name
  std::map<std::string, std::unique_ptr<Daemon>> boxes_;
};

// Ranks in processes of their own that run some rounds on each command. Every element of every sum
// is checked exactly.
class SteadyTraining {
 public:
  struct Options {
    std::string box;
    std::string job = "training";
    uint32_t ranks = 2;
    std::vector<uint64_t> elements = {40'000};
    uint32_t rounds = 50;   // rounds per command
    uint32_t pause_us = 0;  // pause between rounds, in place of computing
    std::function<void(pbox_options&)> adjust = {};
  };
  // Returns once all ranks have joined.
  explicit SteadyTraining(const Options& options);

  void begin_rounds();
  void end_rounds();  // waits for the rounds; throws if a rank has failed
  // Waits until every rank has done this many rounds since begin_rounds(). The following rounds are
  // then under way.
  void await_rounds(uint64_t count) const { progress_.await(begun_at_ + count); }
  // Returns how many rounds every rank has done since begin_rounds().
  uint64_t rounds_done() const { return progress_.least() - begun_at_; }
  void rounds() {
    begin_rounds();
    end_rounds();
  }
  void kill() const;
  // Returns the longest time that any rank waited for a round from begin_rounds() to end_rounds().
  double longest_round_s() const { return longest_round_s_; }
  // Returns how often all ranks together recovered parts from begin_rounds() to end_rounds().
  uint64_t recoveries() const { return recoveries_; }

 private:
  Progress progress_;
  std::vector<WorkerProcess> ranks_;
  uint64_t begun_at_ = 0, recoveries_ = 0;
  double longest_round_s_ = 0;
};

}  // namespace pbox::test
