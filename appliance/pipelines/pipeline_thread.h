// One running pipeline: its port, its core, its thread, on the CPU and NUMA node the plan gave it.
#pragma once

#include <memory>
#include <span>
#include <thread>

#include "appliance/pipelines/any_port.h"
#include "appliance/topology/plan.h"
#include "pipeline/loop.h"

namespace pbox::appliance {

class PipelineThread {
 public:
  // Nothing runs yet. The object stays where it is: the thread points into it. `flight`: as
  // pipeline::EngineOptions has it.
  static Result<std::unique_ptr<PipelineThread>> create(const PipelinePlan& plan,
                                                        const config::Config& config, AnyPort port,
                                                        std::span<std::byte> flight);
  ~PipelineThread();
  PipelineThread(const PipelineThread&) = delete;
  PipelineThread& operator=(const PipelineThread&) = delete;

  // Starts the thread; returns once it is pinned and polling, or says why it could not be pinned.
  Status start();
  // Memory that results are sent from: before the first is, and after the last. The second is false
  // while a device may still read there. Control thread.
  Status add_memory(const NumaArena& memory);
  bool remove_memory(const NumaArena& memory);
  // As PipelineHost says. Control thread.
  Result<wire::QueuePairAddress> connect(uint64_t owner, const wire::QueuePairAddress& peer);
  void disconnect(uint64_t owner);
  // What the port's device has told of, one at a time; nothing if there is no more.
  std::optional<std::string> next_port_event();
  // Hands a command over and returns when it has been carried out. One thread at a time (control).
  void execute(pipeline::Command command);

  // Ends its sleep, if it sleeps. Any thread.
  void wake();

  const PipelinePlan& plan() const { return plan_; }
  uint16_t udp_port() const;
  const nic::Capabilities& capabilities() const { return capabilities_; }
  const pipeline::Counters& counters() const { return engine_.counters(); }
  const nic::PortCounters& port_counters() const;

 private:
  PipelineThread(const PipelinePlan& plan, const config::Config& config, AnyPort port,
                 std::span<std::byte> flight);

  PipelinePlan plan_;
  AnyPort port_;
  nic::Capabilities capabilities_;
  pipeline::Engine engine_;
  pipeline::PollPolicy policy_;
  pipeline::Mailbox mailbox_;
  uint64_t next_ticket_ = 1;
  std::thread thread_;
};

}  // namespace pbox::appliance
