// A worker: a member of its job, or of one part of it, and the application that uses it.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "nic/wire/control.pb.h"
#include "tests/sim/application.h"
#include "tests/sim/member.h"

namespace pbox::sim {

// The box that has a job, and all boxes. A worker is told these before it joins.
struct JobPlace {
  HostId box = 0;
  std::vector<std::string> boxes = {};  // addresses; empty if there is no cluster
};

// Makes the membership that this rank of the job would make. Each process of a rank has its own
// incarnation. `paths`: the paths of its process; if null, lanes have paths of their own.
std::unique_ptr<worker::Membership> make_membership(const Rack& rack, const JobModel& job,
                                                    uint32_t rank, uint32_t incarnation,
                                                    bool rejoins, const JobPlace& place,
                                                    std::shared_ptr<worker::SendPaths> paths);

proto::Optimizer optimizer_message(const optimizer::OptimizerSpec& spec);

class Worker final : public Member {
 public:
  // `process`: the rank's process, which is the same in all parts of the job.
  Worker(Rack& rack, std::shared_ptr<Process> process, JobModel& job, uint32_t rank);

  // Starts the first process of the rank, or a new one after a crash, which tries again until it is
  // admitted. It connects and joins.
  void start();
  // Loses all state, because the process dies. Must be called for all workers of the process. If
  // `silently`, its machine fails.
  void crash(bool silently);

  void on_connected(ConnectionId id) override;
  void on_control_message(ConnectionId id, const std::string& body) override;
  void on_closed(ConnectionId id, const std::string& reason) override;

  JobModel& job() { return job_; }
  const JobModel& job() const { return job_; }
  uint32_t rank() const { return rank_; }
  const Application* application() const { return application_.get(); }
  // Returns when the worker began to wait, in rack time; UINT64_MAX if it is not waiting.
  uint64_t waits_since_ns() const;
  // Returns true once the worker has left after its work, or has failed with an error.
  bool over() const { return over_; }
  // Returns the time from the first start of a round to the end, in rack time.
  uint64_t work_ns() const { return over_ns_ - std::min(over_ns_, began_ns_); }
  uint64_t began_ns() const { return began_ns_; }
  // Returns the time from began_ns() until each tensor had finished a round; 0 if some has not.
  uint64_t first_round_ns() const { return first_round_ns_; }
  const std::optional<Error>& failure() const { return failure_; }

  void pause(uint64_t length_ns);

 private:
  std::string who() const override;
  uint64_t start_operations(uint64_t now_ns) override;
  bool complete_operations(worker::Exchange& exchange, uint64_t now_ns) override;
  std::optional<BurstCheck::Chunk> chunk(uint32_t id) const override;
  void on_session(const worker::SessionSpec& session) override {
    job_.give_back(session.chunks_to_restore, session.open_rounds);
  }
  std::unique_ptr<CreditWatch> watch(const worker::SessionSpec& session,
                                     uint32_t lane) const override {
    // CreditWatch does not follow chunks whose rounds differ in size.
    return job_.collectives ? nullptr : std::make_unique<CreditWatch>(session, lane, job_);
  }
  void end_if_over() override;
  void end();
  void lose_state();
  // In a cluster a worker first asks the boxes in turn for the job's part map, until one answers.
  void ask_map();
  void ask_map_again();
  void take_map(const proto::PartMap& map);
  void join(const JobPlace& place);
  void leave_when_done();
  bool are_all_at_barrier() const;
  bool are_other_parts_done() const;
  void check_statistics(const worker::Exchange& exchange) const;
  bool may_try_again() const;

  JobModel& job_;
  uint32_t rank_;
  std::unique_ptr<Application> application_;
  std::optional<Error> failure_;
  uint64_t began_ns_ = UINT64_MAX;
  uint64_t over_ns_ = 0;
  uint64_t first_round_ns_ = 0;
  uint32_t starts_ = 0;
  bool asks_map_ = false;
  ConnectionId asking_ = 0;  // the connection on which it asks for the map; 0 if there is none
  uint32_t boxes_asked_ = 0;
  uint64_t started_ns_ = 0;   // rack time
  bool has_been_in_ = false;  // a process of this rank has had a session, or should have had one
  bool is_placed_ = false;    // the application knows the rounds in which the job continues
  bool barrier_asked_ = false;
  uint64_t barrier_asked_ns_ = 0;  // rack time
};

}  // namespace pbox::sim
