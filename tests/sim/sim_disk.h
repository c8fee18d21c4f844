// A box's disk. Written bytes survive a crash only once they are synced, and so do names. Before
// that, a crash leaves the old bytes, the new ones, or a torn piece of the new ones. Reads, writes,
// syncs and renames may fail, and a box may be lost between any two steps.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "appliance/storage/disk.h"
#include "base/rng.h"
#include "tests/sim/faults.h"

namespace pbox::sim {

class SimDisk final : public storage::Disk {
 public:
  SimDisk(uint64_t seed, FaultCounts& counts) : rng_(seed), counts_(counts) {}

  Result<std::optional<std::string>> read(const std::string& name) override;
  Result<std::unique_ptr<storage::OutputFile>> create(const std::string& name) override;
  Status rename(const std::string& from, const std::string& to) override;
  Status sync_names() override;
  void remove(const std::string& name) override;

  // Called when the machine loses power. Bytes that were not synced are kept, lost or torn, at
  // random.
  void crash();
  // From now on one step in this many fails, at random; 0 for none.
  void fail_one_of(uint32_t steps) { fail_one_of_ = steps; }
  uint32_t failures_one_of() const { return fail_one_of_; }

 private:
  struct File {
    std::string bytes;
    std::optional<std::string> durable;  // the bytes that a crash is sure to leave
  };
  using Names = std::map<std::string, File>;

  class Output;

  bool fails();
  Status append(const std::string& name, const std::string& bytes);
  Status sync(const std::string& name);

  Rng rng_;
  FaultCounts& counts_;
  uint32_t fail_one_of_ = 0;
  Names files_;
  Names durable_names_;  // names at their last sync
};

}  // namespace pbox::sim
