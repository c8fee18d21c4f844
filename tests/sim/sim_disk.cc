#include "tests/sim/sim_disk.h"

#include <utility>

namespace pbox::sim {
namespace {

Error broken(const std::string& step) {
  return {ErrorCode::kSystem, step + ": the simulated disk failed"};
}

}  // namespace

bool SimDisk::fails() {
  if (fail_one_of_ == 0 || rng_.below(fail_one_of_) != 0) return false;
  counts_.add(Fault::kDiskFault);
  return true;
}

Result<std::optional<std::string>> SimDisk::read(const std::string& name) {
  if (fails()) return broken("reading " + name);
  const auto found = files_.find(name);
  if (found == files_.end()) return std::optional<std::string>();
  return std::optional<std::string>(found->second.bytes);
}

class SimDisk::Output : public storage::OutputFile {
 public:
  Output(SimDisk& disk, std::string name) : disk_(disk), name_(std::move(name)) {}
  Status write(const void* data, size_t bytes) override {
    return disk_.append(name_, {static_cast<const char*>(data), bytes});
  }
  Status sync() override { return disk_.sync(name_); }

 private:
  SimDisk& disk_;
  std::string name_;
};

Result<std::unique_ptr<storage::OutputFile>> SimDisk::create(const std::string& name) {
  files_[name].bytes.clear();
  return std::unique_ptr<storage::OutputFile>(std::make_unique<Output>(*this, name));
}

Status SimDisk::append(const std::string& name, const std::string& bytes) {
  const bool failed = fails();
  // A write to a full disk leaves a prefix of the bytes.
  files_[name].bytes += failed ? bytes.substr(0, rng_.below(bytes.size() + 1)) : bytes;
  return failed ? Status(broken("writing " + name)) : ok_status();
}

Status SimDisk::sync(const std::string& name) {
  if (fails()) return broken("syncing " + name);
  File& file = files_[name];
  file.durable = file.bytes;
  // The name that was synced for this file still refers to the same file.
  if (const auto found = durable_names_.find(name); found != durable_names_.end()) {
    found->second = file;
  }
  return ok_status();
}

Status SimDisk::rename(const std::string& from, const std::string& to) {
  if (fails()) return broken("renaming " + from);
  const auto found = files_.find(from);
  if (found == files_.end()) return broken("renaming " + from + ", which does not exist");
  files_[to] = std::exchange(found->second, {});
  files_.erase(from);
  return ok_status();
}

void SimDisk::remove(const std::string& name) {
  files_.erase(name);
}

Status SimDisk::sync_names() {
  if (fails()) return broken("syncing names");
  durable_names_ = files_;
  return ok_status();
}

void SimDisk::crash() {
  // A file system may have written names to disk without a sync.
  Names left = rng_.below(2) == 0 ? files_ : durable_names_;
  for (auto& [name, file] : left) {
    if (file.durable == file.bytes) continue;
    if (file.durable && rng_.below(2) == 0) {
      file.bytes = *file.durable;
    } else {
      file.bytes.resize(rng_.below(file.bytes.size() + 1));
    }
  }
  for (auto& [name, file] : left) file.durable = file.bytes;
  files_ = durable_names_ = std::move(left);
}

}  // namespace pbox::sim
