// A box's client of the cluster's store. Answers and events take a while, and none arrives while
// the box is cut off from the store or its process is stopped. A commit without an answer may have
// succeeded. If the box is cut off for longer than the lease, its session ends.
#pragma once

#include <deque>
#include <memory>
#include <string>

#include "appliance/cluster/store.h"
#include "base/clock.h"
#include "base/rng.h"
#include "tests/sim/event_queue.h"
#include "tests/sim/meter.h"
#include "tests/sim/store_server.h"

namespace pbox::sim {

inline constexpr uint64_t kStoreLeaseNs = 2 * kNanosPerSecond;

class SimStore final : public cluster::Store {
 public:
  SimStore(EventQueue& queue, StoreServer& server, Meter& meter, uint64_t latency_ns,
           uint64_t seed);
  // Destroyed when the process has died. Its session ends when the lease does.
  ~SimStore() override;

  void start(cluster::Observer observer) override;
  void get(const std::string& prefix, std::function<void(Result<cluster::Snapshot>)> done) override;
  void commit(cluster::Transaction transaction,
              std::function<void(Result<cluster::Outcome>)> done) override;
  std::unique_ptr<cluster::Watch> watch(const std::string& prefix, int64_t revision,
                                        cluster::WatchHandler handler) override;
  int64_t session() const override { return session_; }
  const cluster::Health& health() const override { return health_; }

  // Called with each transaction that the box wants to commit.
  void set_check(std::function<void(const cluster::Transaction&)> check) {
    check_ = std::move(check);
  }
  // Cuts the box off until this time: nothing reaches the store or comes from it. If the process is
  // stopped as well, nothing is reported to it meanwhile, not even failures.
  void cut_off(uint64_t until_ns, bool stops_process);

 private:
  class Subscription;

  bool is_cut_off() const { return queue_.now_ns() < cut_off_until_ns_; }
  // Calls `function` at this time, unless the process has died by then.
  void at(uint64_t due_ns, std::function<void()> function);
  // Calls `apply` when the request reaches the store, and the function that it returns when the
  // answer is back. Calls `fail` instead if the box is cut off.
  void call(std::function<std::function<void()>()> apply, std::function<void(Error)> fail);
  void begin_session();
  void lose_session(int64_t session);
  void set_up(bool up);

  EventQueue& queue_;
  StoreServer& server_;
  Meter& meter_;
  uint64_t latency_ns_;
  Rng rng_;
  cluster::Observer observer_;
  std::function<void(const cluster::Transaction&)> check_ = [](const cluster::Transaction&) {};
  cluster::Health health_;
  int64_t session_ = 0;
  uint64_t cut_off_until_ns_ = 0;
  uint64_t stopped_until_ns_ = 0;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace pbox::sim
