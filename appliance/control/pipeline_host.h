// The box's pipelines as the control plane sees them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/numa_arena.h"
#include "nic/port.h"
#include "nic/rss.h"
#include "nic/wire/queue_pair.h"
#include "pipeline/command.h"
#include "pipeline/job_shard.h"

namespace pbox::appliance {

struct PipelineInfo {
  std::string address;  // to tell workers; empty: the address they reached the control port at
  uint16_t udp_port = 0;
  uint32_t receive_buffer_bytes = 0;
  uint32_t receive_slots = 0;  // packets, whatever their size, that the queue holds; 0: no bound
  uint32_t mtu = UINT32_MAX;   // largest IP packet to send; the workers' paths may be narrower
  int numa_node = kAnyNumaNode;
  Hugepages hugepages = Hugepages::kIfFree;  // for the memory of its jobs
  nic::QueueAffinity affinity = nic::QueueAffinity::kUdpPort;
  uint32_t queue = 0;  // of its NIC
  // kRssHash only: one per NIC, shared by its pipelines.
  std::shared_ptr<const nic::RssTable> rss = {};
};

class PipelineHost {
 public:
  virtual ~PipelineHost() = default;
  virtual uint32_t count() const = 0;
  virtual PipelineInfo info(uint32_t pipeline) const = 0;
  // Hands a command over and returns when the pipeline has carried it out. Control thread. The
  // ticket is the host's to set.
  virtual void execute(uint32_t pipeline, pipeline::Command command) = 0;

  // Has the pipeline look at what relays have given back. Any thread.
  virtual void wake(uint32_t /*pipeline*/) {}

  // kInstall, after what the pipeline's port must know of the shard's memory. Control thread.
  virtual Status install(uint32_t pipeline, pipeline::JobShard& shard) {
    execute(pipeline, {.kind = pipeline::CommandKind::kInstall, .shard = &shard});
    return ok_status();
  }
  // A queue pair on the pipeline's RDMA device, connected to the worker's; the one that the owner
  // had there before is void. Control thread.
  virtual Result<wire::QueuePairAddress> connect(uint32_t /*pipeline*/, uint64_t /*owner*/,
                                                 const wire::QueuePairAddress& /*peer*/) {
    return Error{ErrorCode::kUnavailable, "this box has no RDMA port"};
  }
  // All of the owner's are void. Control thread.
  virtual void disconnect(uint64_t /*owner*/) {}

  // kRemove; the shard is freed as soon as nothing refers to its memory. Control thread.
  virtual void remove(uint32_t pipeline, std::unique_ptr<pipeline::JobShard> shard) {
    execute(pipeline, {.kind = pipeline::CommandKind::kRemove, .shard = shard.get()});
  }
};

}  // namespace pbox::appliance
