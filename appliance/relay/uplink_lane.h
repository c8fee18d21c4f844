// One part of a relayed job at the other box: a libpbox session whose tensors are the chunks of the
// part. The library's I/O thread takes sums from the pipelines' rings by itself, sends them from
// the chunks' accumulators, writes the results beside them, and gives the chunks back.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "appliance/control/upstream.h"
#include "config/config.h"
#include "pbox/pbox.h"
#include "pbox/uplink.h"

namespace pbox::relay {

// The description that all lanes of a relay share.
struct LanePlan {
  config::Upstream settings;
  std::string keys;  // folder of this box's keys; empty if it has none
  control::RelaySpec spec;
};

class UplinkLane {
 public:
  using OnFailure = std::function<void(const Error&)>;  // on the I/O thread

  // Makes a lane for part `part` of `parts` of the job at the other box, with these chunks in
  // ascending order. `plan` must outlive the lane.
  UplinkLane(const LanePlan& plan, uint32_t part, uint32_t parts, std::vector<uint32_t> chunks,
             OnFailure on_failure);
  // Destroy the lane only after all other calls have returned.
  ~UplinkLane();
  UplinkLane(const UplinkLane&) = delete;
  UplinkLane& operator=(const UplinkLane&) = delete;

  // Asks the other box how many pipelines it has.
  Result<uint32_t> ask_lanes(uint64_t deadline_ns);
  // Joins the part. Waits for the other racks.
  Status join(uint64_t deadline_ns);
  // Leaves the part; a join that waits ends with kClosed. `reason`: as in
  // control::Relay::set_reason. May be called on any thread.
  void leave(const std::string& reason);
  // Number of workers of all racks; valid after the join.
  uint32_t workers() const { return workers_; }
  // Sends initial values, by chunk of the job, and waits until the other box has them, however long
  // the network takes. The loss of the box ends the wait.
  Status send_seeds(std::vector<std::vector<float>>& values);
  // Relays what arrives through `rings` (one for each pipeline) until the lane is left. `wake_fd`:
  // the eventfd that a pipeline writes to.
  Status run(std::vector<control::RelayLane> rings, int wake_fd);
  // `by_chunk` has an entry for each chunk of the job.
  Status set_priorities(const std::vector<int32_t>& by_chunk);
  // Returns once the upper box uses the rate.
  Status set_learning_rate(float learning_rate);
  // The numbers of chunks taken from the rings, and returned to them. May be called on any thread.
  uint64_t started() const { return started_.load(std::memory_order_relaxed); }
  uint64_t relayed() const { return relayed_.load(std::memory_order_relaxed); }

 private:
  Status create(uint32_t join_timeout_ms);
  Status register_tensors();
  Status set_optimizer();
  Status exchange_first(uint64_t deadline_ns);
  Status await(uint32_t tensor, uint64_t deadline_ns);
  // The following functions run on the I/O thread.
  bool next(uint32_t& tensor, const void*& input, void*& output);
  bool may_sleep();
  void done(uint32_t tensor);
  Error last_error(pbox_status status) const;

  const LanePlan& plan_;
  const uint32_t part_, parts_;
  const std::vector<uint32_t> chunks_;  // by tensor, after the first tensors_before_
  const OnFailure on_failure_;
  std::atomic<bool> left_ = false;
  // Guards `context_`, which leave() uses, while it is created.
  std::mutex mutex_;
  pbox_context* context_ = nullptr;
  uint32_t workers_ = 0;
  float first_ = 1;  // see kTensorsBesideChunks
  const uint32_t tensors_before_;
  std::vector<control::RelayLane> rings_;
  // The ring from which each tensor's chunk was taken.
  std::vector<uint16_t> ring_of_;
  std::vector<uint32_t> tensor_of_;  // by chunk of the job; UINT32_MAX if it is another lane's
  std::atomic<uint64_t> started_ = 0, relayed_ = 0;
};

}  // namespace pbox::relay
