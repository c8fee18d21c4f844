// A box's way to the box that has a copy of one of its parts (replicas = 1). What appliance/relay
// does with a thread and libpbox is done here with what is in libpbox, its membership.
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
  // Joins the job of the copy at once. `box`: whose it is, and who has the copy is at `address`.
  BackupMember(Rack& rack, HostId box, uint32_t number, const std::string& address,
               appliance::RelaySpec spec, std::function<void(Status)> tell);

  // As appliance::Relay.
  void seed(std::vector<std::vector<float>> values);
  void run(std::vector<appliance::RelayLane> lanes);
  appliance::RelayView view() const;
  void leave();

  // A pipeline may have something for it.
  void wake() {
    if (!lanes_.empty()) thread_.wake_soon();
  }
  // The box's process is gone.
  void crash();

 private:
  static constexpr uint32_t kWorkersTensor = 0;

  std::string who() const override;
  uint64_t run(worker::Exchange& exchange, uint64_t now_ns, bool& busy) override;
  void end_if_over() override;
  void start(uint32_t chunk, float* values);
  void start_seeds();
  void start_sums();
  void completed(uint32_t tensor);
  void tell(const Status& status);

  HostId box_;  // whose it is
  appliance::RelaySpec spec_;
  std::string address_;
  std::function<void(Status)> tell_;
  float own_workers_ = 0, all_workers_ = 0;
  bool counts_workers_ = false, is_joined_ = false;
  std::optional<std::vector<std::vector<float>>> seeds_;  // until all of them are there
  bool seeds_started_ = false;
  uint32_t seeds_left_ = 0;
  std::vector<appliance::RelayLane> lanes_;
  std::vector<size_t> lane_of_;  // by chunk
  uint64_t started_ = 0, relayed_ = 0;
};

// What the registry has of it.
class BackupRelay final : public appliance::Relay {
 public:
  explicit BackupRelay(BackupMember& member) : member_(member) {}
  ~BackupRelay() override { member_.leave(); }
  void seed(std::vector<std::vector<float>> values) override { member_.seed(std::move(values)); }
  void run(std::vector<appliance::RelayLane> lanes) override { member_.run(std::move(lanes)); }
  appliance::RelayView view() const override { return member_.view(); }

 private:
  BackupMember& member_;
};

}  // namespace pbox::sim
