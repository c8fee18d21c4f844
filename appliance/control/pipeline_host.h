// The box's pipelines as the control plane sees them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/numa_arena.h"
#include "nic/port.h"
#include "nic/rss.h"
#include "pipeline/command.h"

namespace pbox::appliance {

struct PipelineInfo {
  std::string address;  // to tell workers; empty: the address they reached the control port at
  uint16_t udp_port = 0;
  uint32_t receive_buffer_bytes = 0;
  uint32_t mtu = UINT32_MAX;  // largest IP packet to send; the workers' paths may be narrower
  int numa_node = kAnyNumaNode;
  Hugepages hugepages = Hugepages::kIfFree;  // for the memory of its jobs
  nic::QueueAffinity affinity = nic::QueueAffinity::kUdpPort;
  uint32_t queue = 0;  // of its NIC
  std::shared_ptr<const nic::RssTable> rss =
      {};  // kRssHash only: one per NIC, shared by its pipelines
};

class PipelineHost {
 public:
  virtual ~PipelineHost() = default;
  virtual uint32_t count() const = 0;
  virtual PipelineInfo info(uint32_t pipeline) const = 0;
  // Hands a command over and returns when the pipeline has carried it out. Control thread. The
  // ticket is the host's to set.
  virtual void execute(uint32_t pipeline, pipeline::Command command) = 0;
};

}  // namespace pbox::appliance
