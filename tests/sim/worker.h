// A worker: the product's membership and protocol core over simulated ports and connections, driven
// as libpbox's client drives them, and the application that uses it.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "nic/wire/control.pb.h"
#include "tests/sim/application.h"
#include "tests/sim/credit_watch.h"
#include "tests/sim/host.h"
#include "tests/sim/rack.h"
#include "worker/membership.h"

namespace pbox::sim {

// As this rank of the job would have it. Each process of a rank is another incarnation.
std::unique_ptr<worker::Membership> make_membership(const Rack& rack, const JobModel& job,
                                                    uint32_t rank, uint32_t incarnation,
                                                    bool rejoins);

class Worker final : public ControlEnd {
 public:
  Worker(Rack& rack, JobModel& job, uint32_t rank);

  // Connects and joins: the first process of the rank, or a new one after a crash, which tries
  // again until it is let in.
  void start();
  // The process is gone, with all it knew; `silently`: its machine is.
  void crash(bool silently);

  bool on_accept(ConnectionId, HostId) override { return false; }
  void on_connected(ConnectionId id) override;
  void on_control_message(ConnectionId id, const std::string& body) override;
  void on_closed(ConnectionId id, const std::string& reason) override;

  HostId host() const { return host_; }
  JobModel& job() { return job_; }
  uint32_t rank() const { return rank_; }
  // It has had a session.
  bool joined() const { return membership_ && membership_->core() != nullptr; }
  const Application* application() const { return application_ ? &*application_ : nullptr; }
  // In rack time, since when it has waited for what it waits for; UINT64_MAX: for nothing.
  uint64_t waits_since_ns() const;
  // It has left, its work done, or has failed with an error.
  bool over() const { return over_; }
  // From the first start of a round to the end, in rack time.
  uint64_t work_ns() const { return over_ns_ - std::min(over_ns_, began_ns_); }
  const std::optional<Error>& failure() const { return failure_; }

  void pause(uint64_t length_ns);
  void jump(uint64_t ahead_ns) { thread_.jump(ahead_ns); }
  // Takes one packet a turn, and its time for it.
  void set_slow(bool slow) { slow_ = slow; }

 private:
  struct Lane {
    nic::Endpoint local;
    std::unique_ptr<SimPort> port;
    std::unique_ptr<CreditWatch> credit;
  };

  std::string who() const;
  void turn();
  void run_application(uint64_t now_ns, uint64_t& next_ns, bool& busy);
  bool exchange_packets(uint64_t now_ns);
  bool exchange(uint32_t lane, uint64_t now_ns);
  void leave_when_done();
  void check_statistics(const worker::Core& core) const;
  // Carries out what the membership wants done.
  void perform();
  void perform(worker::Action& action);
  void connect(const worker::Action& action);
  void send(const control::WorkerMessage& message);
  void open_lanes(const worker::SessionSpec& session);
  void close_lanes();
  void end_if_over();
  bool may_try_again() const;

  Rack& rack_;
  JobModel& job_;
  uint32_t rank_;
  HostId host_;
  Thread thread_;
  std::optional<Application> application_;
  std::unique_ptr<worker::Membership> membership_;
  ConnectionId connection_ = 0;  // 0: none
  HostId box_ = 0;               // where that goes
  bool is_connected_ = false;
  std::vector<Lane> lanes_;
  uint64_t transport_ = 0;  // counts those that were opened
  std::optional<Error> failure_;
  bool over_ = false;
  uint64_t began_ns_ = UINT64_MAX;
  uint64_t over_ns_ = 0;
  uint32_t starts_ = 0;
  uint64_t started_ns_ = 0;   // rack time
  bool has_been_in_ = false;  // some process of this rank has had a session
  bool is_placed_ = false;    // the application knows where the job stands
  bool barrier_asked_ = false;
  uint64_t barrier_asked_ns_ = 0;  // rack time
  bool slow_ = false;
};

}  // namespace pbox::sim
