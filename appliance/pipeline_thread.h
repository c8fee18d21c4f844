// One running pipeline: its port, its core, its thread, on the CPU and NUMA node the plan gave it.
#pragma once

#include <memory>
#include <thread>

#include "appliance/topology.h"
#include "nic/socket/port.h"
#include "pipeline/loop.h"

namespace pbox::appliance {

class PipelineThread {
 public:
  // Opens the port; nothing runs yet. The object stays where it is: the thread points into it.
  static Result<std::unique_ptr<PipelineThread>> open(const PipelinePlan& plan,
                                                      const config::Config& config);
  ~PipelineThread();
  PipelineThread(const PipelineThread&) = delete;
  PipelineThread& operator=(const PipelineThread&) = delete;

  // Starts the thread; returns once it is pinned and polling, or says why it could not be pinned.
  Status start();
  // Hands a command over and returns when it has been carried out. One thread at a time (control).
  void execute(pipeline::Command command);

  const PipelinePlan& plan() const { return plan_; }
  uint16_t udp_port() const { return port_.local().port; }
  nic::Capabilities capabilities() const { return capabilities_; }
  const pipeline::Counters& counters() const { return core_.counters(); }
  const nic::PortCounters& port_counters() const { return port_.counters(); }

 private:
  PipelineThread(const PipelinePlan& plan, const config::Config& config, nic::SocketPort port);
  void wake();

  PipelinePlan plan_;
  nic::SocketPort port_;
  nic::Capabilities capabilities_;
  pipeline::Core core_;
  pipeline::PollPolicy policy_;
  pipeline::Mailbox mailbox_;
  uint64_t next_ticket_ = 1;
  std::thread thread_;
};

}  // namespace pbox::appliance
