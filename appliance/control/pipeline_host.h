// The box's pipelines as the control plane sees them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/numa_arena.h"
#include "nic/port.h"
#include "nic/rss.h"
#include "nic/shm/hello.h"
#include "nic/wire/queue_pair.h"
#include "pipeline/command.h"
#include "pipeline/job_shard.h"

namespace pbox::control {

struct PipelineInfo {
  // Data address for workers; empty if they use the address at which they reached the control port.
  std::string address;
  uint16_t udp_port = 0;
  uint32_t receive_buffer_bytes = 0;
  uint32_t receive_slots = 0;  // packets of any size that the receive queue holds; 0 if unbounded
  uint32_t mtu = UINT32_MAX;   // largest IP packet to send; the path to a worker may allow less
  int numa_node = kAnyNumaNode;
  Hugepages hugepages = Hugepages::kIfFree;  // for the memory of its jobs
  nic::QueueAffinity affinity = nic::QueueAffinity::kUdpPort;
  uint32_t queue = 0;  // queue index on its NIC
  // kRssHash only: the NIC's RSS table, shared by its pipelines.
  std::shared_ptr<const nic::RssTable> rss = {};
};

class PipelineHost {
 public:
  virtual ~PipelineHost() = default;
  virtual uint32_t count() const = 0;
  virtual PipelineInfo info(uint32_t pipeline) const = 0;
  // Passes a command to the pipeline and returns when the pipeline has carried it out. The host
  // sets the ticket. Call it on the control thread.
  virtual void execute(uint32_t pipeline, pipeline::Command command) = 0;

  // Returns an eventfd that is written to when a pipeline reports a round that waits for a verdict
  // (StepGate), and when a Prefault is over; -1 if there is none. May be called on any thread.
  virtual int report_fd() const { return -1; }

  // Begins to prefault the memory on another thread, so that pipelines need not wait for its pages.
  // Returns null if there is nothing to do. Call it on the control thread.
  virtual std::unique_ptr<Prefault> prefault(const NumaArena& /*memory*/) { return nullptr; }

  // Makes the pipeline process the results that relays have returned. May be called on any thread.
  virtual void wake(uint32_t /*pipeline*/) {}

  // Registers the shard's memory with the pipeline's port where necessary, then executes kInstall.
  // Call it on the control thread.
  virtual Status install(uint32_t pipeline, pipeline::JobShard& shard) {
    execute(pipeline, {.kind = pipeline::CommandKind::kInstall, .shard = &shard});
    return ok_status();
  }
  // Creates a queue pair on the pipeline's RDMA device and connects it to the worker's. The owner's
  // previous queue pair there becomes invalid. Call it on the control thread.
  virtual Result<wire::QueuePairAddress> connect(uint32_t /*pipeline*/, uint64_t /*owner*/,
                                                 const wire::QueuePairAddress& /*peer*/) {
    return Error{ErrorCode::kUnavailable, "this box has no RDMA port"};
  }
  // Lets a worker of this host make lanes of shared memory: `lanes[i]` is for pipeline i of its
  // session. Replaces the owner's earlier offer. Call it on the control thread.
  struct LaneSeat {
    uint32_t pipeline = 0;
    nic::LaneGrant grant;
  };
  struct LaneOffer {
    std::string socket;
    nic::LaneToken token;
  };
  virtual bool offers_lanes() const { return false; }
  virtual Result<LaneOffer> offer_lanes(uint64_t /*owner*/, std::vector<LaneSeat>&& /*lanes*/) {
    return Error{ErrorCode::kUnavailable, "this box offers no shared memory"};
  }
  // Invalidates all queue pairs, lanes and offers of the owner. Call it on the control thread.
  virtual void disconnect(uint64_t /*owner*/) {}

  // Executes kRemove. The shard is freed as soon as nothing refers to its memory. Call it on the
  // control thread.
  virtual void remove(uint32_t pipeline, std::unique_ptr<pipeline::JobShard> shard) {
    execute(pipeline, {.kind = pipeline::CommandKind::kRemove, .shard = shard.get()});
  }
};

}  // namespace pbox::control
