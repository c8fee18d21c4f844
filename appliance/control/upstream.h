// Where the sums of a box go on to, as control sees it: another box, one of whose ranks this box is
// in each job. Two-level aggregation: PHub's cross-rack reduction (Luo et al., SoCC 2018, section
// 3.4). And where copies of parts go to: the backup boxes of jobs with replicas = 1.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "appliance/control/job_view.h"
#include "base/result.h"
#include "nic/wire/schedule.h"
#include "pipeline/state/uplink.h"

namespace pbox::appliance {

struct RelayedChunk {
  std::string name;
  uint32_t elements = 0;
  int32_t priority = 0;
};

struct RelaySpec {
  std::string job;
  uint32_t workers = 0;  // of the job, here
  wire::Numerics numerics = wire::Numerics::kFast;
  uint64_t join_timeout_ns = 0;
  std::vector<RelayedChunk> chunks;  // by their ids
  // The job there is the copy of a part: of one rank, and no other box is looked for when the one
  // that has it is lost.
  bool is_backup = false;
};

// Beside the chunks, which follow: how many workers there are.
inline constexpr uint32_t kTensorsBesideChunks = 1;

// One pipeline's part of a job.
struct RelayLane {
  pipeline::Uplink* uplink = nullptr;
  std::function<void()> wake;  // the pipeline; any thread
};

// One job's way to the other box. Control thread. Once it is destroyed nobody touches the lanes.
class Relay {
 public:
  virtual ~Relay() = default;
  // At most once, when it has joined and before it runs: these become the values of the chunks, by
  // their ids; of an empty one nothing is sent. `on_change` is called when they are there.
  virtual void seed(std::vector<std::vector<float>> values) = 0;
  // Once, when it has joined: from now on what comes up these lanes is summed over all racks, or
  // copied. Their shards outlive the relay.
  virtual void run(std::vector<RelayLane> lanes) = 0;
  virtual RelayView view() const = 0;
};

class Upstream {
 public:
  virtual ~Upstream() = default;
  // Joins the job there. `on_change` is called on the control thread: once when it has joined, or,
  // then or later, once with what it fails of. Control thread.
  virtual std::unique_ptr<Relay> join(RelaySpec spec, std::function<void(Status)> on_change) = 0;
};

class BackupBoxes {
 public:
  virtual ~BackupBoxes() = default;
  // As Upstream::join, of the box whose control port is at `address`.
  virtual std::unique_ptr<Relay> join(const std::string& address, RelaySpec spec,
                                      std::function<void(Status)> on_change) = 0;
};

}  // namespace pbox::appliance
