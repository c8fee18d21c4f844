// The boxes to which this box sends data of its jobs, as control sees them. An upstream is an upper
// box that sums over racks; this box is one of its ranks in each job. This two-level aggregation is
// PHub's cross-rack reduction (Luo et al., SoCC 2018, section 3.4). Backup boxes keep copies of the
// parts of jobs with replicas = 1.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "appliance/control/job_view.h"
#include "base/result.h"
#include "nic/wire/guard.h"
#include "nic/wire/schedule.h"
#include "pipeline/job_shard.h"
#include "pipeline/state/uplink.h"

namespace pbox::control {

struct RelayedChunk {
  std::string name;
  uint32_t elements = 0;
  int32_t priority = 0;
  // The following two are for mode optimize.
  float lr_scale = 1;
  float weight_decay = 0;
};

struct RelaySpec {
  std::string job;
  uint32_t workers = 0;  // number of workers that this box sums
  wire::Numerics numerics = wire::Numerics::kFast;
  uint64_t join_timeout_ns = 0;
  uint32_t lost_timeout_ms = 0;      // as the ranks have stated it; 0 if they have not
  std::vector<RelayedChunk> chunks;  // indexed by chunk id
  pipeline::Mode mode = pipeline::Mode::kAggregate;
  optimizer::OptimizerSpec optimizer = {};  // run by the upper box, in mode optimize
  pipeline::Reduction reduction = pipeline::Reduction::kSum;  // over the workers of all racks
  // The part of the job whose chunks these are.
  uint32_t part = 0, parts = 1;
  // The remote job is the backup of a part: it has one rank, and if its box is lost no other box is
  // tried.
  bool is_backup = false;
  bool has_clocks = false;  // a backup of a relaxed job's part
  // The guard for the sums. It has no bound, because the job's bound is on a single rank's values.
  wire::Guard guard = wire::Guard::kFlag;
};

// Number of tensors of a backup copy before those of its chunks. There is one, of one element: its
// exchange shows that the backup box accepts what it is sent.
inline constexpr uint32_t kTensorsBesideChunks = 1;

// Connects one pipeline's shard with one of the relay's lanes.
struct RelayLane {
  uint32_t lane = 0;
  pipeline::Uplink* uplink = nullptr;
  std::function<void()> wake;  // wakes the pipeline; may be called on any thread
  // All memory from which the pipeline's sums are sent.
  std::span<const std::byte> memory = {};
};

// One job's session at the other box. Used on the control thread. Nothing touches the lanes after
// the relay has been destroyed.
class Relay {
 public:
  virtual ~Relay() = default;
  // Sends initial values of the chunks, indexed by chunk id; an empty entry is not sent. May be
  // called once, after joining and before run(). `on_change` is called when the other box has them.
  virtual void seed(std::vector<std::vector<float>> values) = 0;
  // Starts relaying: from now on chunks that arrive through these lanes are summed over all racks,
  // or copied. Must be called once, after joining. The lanes' shards outlive the relay.
  virtual void run(std::vector<RelayLane> lanes) = 0;
  // Replaces the chunks' priorities in the spec. `by_chunk`: by chunk id. Applies to chunks that
  // are relayed from now on, and to their results at the other box. Only after joining.
  virtual void set_priorities(std::vector<int32_t> by_chunk) = 0;
  // Has the upper box's optimizer use this learning rate for rounds that begin from now on.
  // `confirmed` is called on the control thread, once it does; never if the relay fails. Only in
  // mode optimize, after run().
  virtual void set_learning_rate(float /*learning_rate*/,
                                 const std::function<void()>& /*confirmed*/) {
    PBOX_CHECK(false);
  }
  virtual RelayView view() const = 0;
  // Returns the number of lanes to the other box, and the lane that sends a chunk on. Only after
  // joining.
  virtual uint32_t lane_count() const { return 1; }
  virtual uint8_t lane_of(uint32_t /*chunk*/) const { return 0; }
  // Sets the reason for which the job has failed on this box. The other ranks at the other box are
  // told it when the destructor leaves the job there.
  virtual void set_reason(const std::string& /*reason*/) {}
};

class Upstream {
 public:
  virtual ~Upstream() = default;
  // Joins the job at the upper box. `on_change` is called on the control thread: once when the join
  // has succeeded, and at most once, then or later, with the error that ended the relay. Call it on
  // the control thread.
  virtual std::unique_ptr<Relay> join(RelaySpec spec, std::function<void(Status)> on_change) = 0;
};

class BackupBoxes {
 public:
  virtual ~BackupBoxes() = default;
  // Like Upstream::join, at the box whose control port is at `address`.
  virtual std::unique_ptr<Relay> join(const std::string& address, RelaySpec spec,
                                      std::function<void(Status)> on_change) = 0;
};

}  // namespace pbox::control
