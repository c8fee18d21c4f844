// A disk that fails at a step that its user chooses, and loses in a crash what was not synced.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "appliance/storage/disk.h"

namespace pbox::test {

class CrashingDisk : public storage::Disk {
 public:
  Result<std::optional<std::string>> read(const std::string& name) override {
    const auto found = now_.find(name);
    if (found == now_.end()) return std::optional<std::string>();
    return std::optional<std::string>(found->second);
  }
  Result<std::unique_ptr<storage::OutputFile>> create(const std::string& name) override {
    now_[name].clear();
    return std::unique_ptr<storage::OutputFile>(std::make_unique<Output>(*this, name));
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

  void remove(const std::string& name) override { now_.erase(name); }

  // Called when the machine loses power.
  void crash() {
    now_ = durable_;
    synced_ = durable_;
    renames_.clear();
    steps_left = -1;
  }

  int steps_left = -1;  // steps that succeed before every step fails; -1 if none fails

 private:
  class Output : public storage::OutputFile {
   public:
    Output(CrashingDisk& disk, std::string name) : disk_(disk), name_(std::move(name)) {}
    Status write(const void* data, size_t bytes) override {
      return disk_.step([&] { disk_.now_[name_].append(static_cast<const char*>(data), bytes); });
    }
    Status sync() override {
      return disk_.step([&] { disk_.synced_[name_] = disk_.now_[name_]; });
    }

   private:
    CrashingDisk& disk_;
    std::string name_;
  };

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
