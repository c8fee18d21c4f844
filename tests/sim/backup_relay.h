// A box's connection to the box that keeps a backup copy of one of its parts (replicas = 1).
// appliance/relay does this with a thread and libpbox; here only libpbox's membership is used.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "appliance/control/upstream.h"
#include "tests/sim/member.h"

namespace pbox::sim {

class BackupMember final : public Member {
 public:
  // Joins the backup job at once. `box` is the primary; the backup box is at `address`.
  BackupMember(Rack& rack, HostId box, uint32_t number, const std::string& address,
               control::RelaySpec spec, std::function<void(Status)> tell);

  // These are the operations of control::Relay, which BackupRelay forwards.
  void seed(std::vector<std::vector<float>> values);
  void run(std::vector<control::RelayLane> lanes);
  void set_priorities(const std::vector<int32_t>& by_chunk);
  control::RelayView view() const;
  void leave();

  // Called when a pipeline may have chunks for the relay.
  void wake() {
    if (!lanes_.empty()) thread().wake_soon();
  }
  // Called when the primary's process has died.
  void crash();

 private:
  static constexpr uint32_t kWorkersTensor = 0;

  std::string who() const override;
  uint64_t start_operations(uint64_t now_ns) override;
  bool complete_operations(worker::Exchange& exchange, uint64_t now_ns) override;
  void end_if_over() override;
  void start(uint32_t chunk, float* values);
  void start_seeds();
  void start_sums();
  void completed(uint32_t tensor);
  void tell(const Status& status);

  HostId box_;  // the primary
  control::RelaySpec spec_;
  std::string address_;
  std::function<void(Status)> tell_;
  float own_workers_ = 0, all_workers_ = 0;
  bool counts_workers_ = false, is_joined_ = false;
  std::optional<std::vector<std::vector<float>>> seeds_;  // held until all of them have been sent
  bool seeds_started_ = false;
  uint32_t seeds_left_ = 0;
  std::vector<control::RelayLane> lanes_;
  std::vector<size_t> lane_of_;  // by chunk
  uint64_t started_ = 0, relayed_ = 0;
};

// The object that the registry holds; it forwards to a BackupMember.
class BackupRelay final : public control::Relay {
 public:
  explicit BackupRelay(BackupMember& member) : member_(member) {}
  ~BackupRelay() override { member_.leave(); }
  void seed(std::vector<std::vector<float>> values) override { member_.seed(std::move(values)); }
  void run(std::vector<control::RelayLane> lanes) override { member_.run(std::move(lanes)); }
  void set_priorities(std::vector<int32_t> by_chunk) override { member_.set_priorities(by_chunk); }
  control::RelayView view() const override { return member_.view(); }

 private:
  BackupMember& member_;
};

}  // namespace pbox::sim
