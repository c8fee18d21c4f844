// A disk that fails at a step of its user's choice, and forgets in a crash what was not synced.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "appliance/storage/disk.h"

namespace pbox::test {

class CrashingDisk : public appliance::Disk {
 public:
  Result<std::optional<std::string>> read(const std::string& name) override {
    const auto found = now_.find(name);
    if (found == now_.end()) return std::optional<std::string>();
    return std::optional<std::string>(found->second);
  }
  Status write(const std::string& name, const std::string& bytes) override {
    return step([&] { now_[name] = bytes; });
  }
  Status sync(const std::string& name) override {
    return step([&] { synced_[name] = now_[name]; });
  }
  Status rename(const std::string& from, const std::string& to) override {
    return step([&] {
      now_[to] = now_[from];
      now_.erase(from);
      renames_.emplace_back(from, to);
    });
  }
  Status sync_names() override {
    return step([&] {
      for (const auto& [from, to] : renames_) {
        durable_[to] = synced_[from];
        durable_.erase(from);
      }
      renames_.clear();
    });
  }

  void crash() {
    now_ = durable_;
    synced_ = durable_;
    renames_.clear();
    steps_left = -1;
  }

  int steps_left = -1;  // then every step fails; -1: none does

 private:
  template <typename Function>
  Status step(const Function& function) {
    if (steps_left == 0) return Error{ErrorCode::kSystem, "no space left on device"};
    if (steps_left > 0) --steps_left;
    function();
    return ok_status();
  }

  std::map<std::string, std::string> now_, synced_, durable_;
  std::vector<std::pair<std::string, std::string>> renames_;
};

}  // namespace pbox::test
