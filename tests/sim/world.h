// Runs one seed: a rack of boxes, workers and jobs, the faults drawn for it, and the checks, until
// all jobs are over.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/sim/box.h"
#include "tests/sim/cable.h"
#include "tests/sim/rogue.h"
#include "tests/sim/worker.h"

namespace pbox::sim {

struct Outcome {
  std::string violation;  // empty if there is none
  FaultCounts faults;
  uint64_t events = 0;
  uint64_t simulated_ns = 0;
  uint64_t work_ns = 0;            // time of the slowest rank, from its session to its end
  uint64_t began_ns = UINT64_MAX;  // rack time at which the first rank started its first round
  uint64_t first_round_ns = 0;  // time until the slowest rank has finished a round of all tensors
  std::vector<std::array<CableUse, 2>> cables;  // use of Options::cables, by CableDirection
  uint64_t rounds = 0;                          // rounds of tensors, over all workers
  uint64_t pulls = 0;                           // PULL packets that boxes received
  uint64_t jobs_failed = 0;                     // jobs that failed for a valid reason
  uint64_t trace_hash = 0;
  // Forged packets by kind and by receiver, only with Options::attack_bursts. `key_updates`:
  // updates of sending keys.
  ForgeryCounts forgeries{};
  uint64_t forged_for_boxes = 0, forged_for_workers = 0;
  uint64_t key_updates = 0;
};

class World {
 public:
  // `trace`: the stream for the trace of events; null for no trace. `checks`: false for a second
  // run of a seed, of which only the trace hash is of interest.
  explicit World(const Options& options, std::ostream* trace = nullptr, bool checks = true)
      : World(options, trace, checks,
              options.has_snapshots ? std::make_shared<SnapshotFolder>() : nullptr) {}

  Outcome run();

  // For measurements: registers `observe`, which is called at the start of the run and then at this
  // interval. The run ends once it returns false.
  void observe(uint64_t interval_ns, std::function<bool()> observe) {
    observe_interval_ns_ = interval_ns;
    observe_ = std::move(observe);
  }
  Meter& meter() { return meter_; }
  const EventQueue& queue() const { return queue_; }
  const ControlNetwork& control() const { return control_; }
  const SimCluster& cluster() const { return cluster_; }
  const std::vector<std::unique_ptr<Worker>>& workers() const { return workers_; }
  Box& box(HostId box) { return *boxes_[box]; }
  // Returns the cluster as the leading box sees it; null if no box believes that it leads.
  BoxCluster* leaders_cluster();

 private:
  World(const Options& options, std::ostream* trace, bool checks,
        std::shared_ptr<SnapshotFolder> snapshots);

  void run_before();
  void form_cluster();
  void observe_again();
  void schedule_faults();
  // Returns whether the episode is about the path from a rack's box to the upper box. In two levels
  // half of all episodes are.
  bool is_upper(const Episode& episode) const {
    return options_.has_levels && (episode.draw >> 43 & 1) != 0;
  }
  std::pair<HostId, HostId> path_of(const Episode& episode);
  void begin(const Episode& episode);
  void end(const Episode& episode);
  void end_on_path(const Episode& episode);
  void drop_fragment(const Episode& episode);
  void change_model(const ModelChange& change);
  void ask_for_snapshot(const SnapshotCall& call);
  void move_chunks(const ChunkMove& move);
  void send_from_outside(const Episode& episode, uint32_t left);
  void forge(const nic::Endpoint& from);
  void overhear(const Packet& packet);
  void attack();
  void heal();
  void watch();
  bool over() const;
  void check_everything();
  void check_end();
  bool rings_hold_all() const;
  void check_refusal(const Worker& worker) const;
  void check_rejection(const Worker& worker) const;
  static void check_disagreement(const Worker& worker);
  void disturb(JobModel& job, bool loses_box, const Worker* lost = nullptr);
  void silence(uint64_t length_ns);
  void hide_box(uint64_t length_ns);
  static void lose_state(JobModel& job);
  bool outlives(const JobModel& job, const Box& lost) const;
  bool are_all_in(const JobModel& job) const;
  static void gather_again(JobModel& job, bool all_are_in);
  void gather_part_again(const std::string& name, uint32_t part);
  void lose_box(const Episode& episode);
  void drain(const Episode& episode);
  void move_part(const Episode& episode);
  void on_move(const std::string& job, uint32_t part, HostId from, HostId to);
  void fail_disk(const Episode& episode);
  HostId caller_of(const Episode& episode);
  void stall_control(const Episode& episode);
  void break_control(const Episode& episode);
  void lose_worker(const Episode& episode);
  std::shared_ptr<Process> process_on(HostId host);
  std::vector<Worker*> process_of(const Worker& worker);
  uint64_t limit_ns(const JobModel& job) const;

  Worker& worker_of(uint64_t draw) { return *workers_[draw % workers_.size()]; }
  Box& box_of(uint64_t draw) { return *boxes_[draw % boxes_.size()]; }

  Options options_;
  FaultCounts counts_;
  EventQueue queue_;
  Network network_;
  ControlNetwork control_;
  std::vector<std::unique_ptr<JobModel>> jobs_;
  SimCluster cluster_;
  SimKeys keys_;
  Meter meter_;
  std::shared_ptr<SnapshotFolder> snapshots_;  // null if the boxes keep none
  Rack rack_;
  std::vector<std::unique_ptr<Box>> boxes_;
  std::map<HostId, std::shared_ptr<Process>> processes_;  // workers' processes
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::unique_ptr<Rogue>> rogues_;
  Rng rng_;
  Forger forger_;
  uint64_t forged_for_boxes_ = 0, forged_for_workers_ = 0;
  uint64_t observe_interval_ns_ = 0;
  std::function<bool()> observe_;  // null if there is no observer
  bool is_stopped_ = false;
  uint64_t begin_ns_ = 0;
  uint64_t events_per_full_check_ = 0;
  uint64_t silence_ns_ = 0;  // sum over all silent episodes so far
  uint64_t healed_ns_ = UINT64_MAX;
  uint64_t all_over_ns_ = UINT64_MAX;  // time at which all jobs were first seen to be over
};

}  // namespace pbox::sim
