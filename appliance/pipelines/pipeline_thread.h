// One running pipeline: its port, its engine and its thread, on the CPU and NUMA node of the plan.
#pragma once

#include <memory>
#include <span>
#include <thread>

#include "appliance/pipelines/any_port.h"
#include "appliance/topology/plan.h"
#include "base/descriptor.h"
#include "pipeline/loop.h"

namespace pbox::pipelines {

class PipelineThread {
 public:
  // Makes the pipeline without starting its thread. The object does not move afterwards, since the
  // thread points into it. `flight` is as in pipeline::EngineOptions.
  static Result<std::unique_ptr<PipelineThread>> create(const topology::PipelinePlan& plan,
                                                        const config::Config& config, AnyPort port,
                                                        std::span<std::byte> flight);
  ~PipelineThread();
  PipelineThread(const PipelineThread&) = delete;
  PipelineThread& operator=(const PipelineThread&) = delete;

  // Starts the thread. Returns once the thread is pinned and about to poll, or cannot be.
  Status start();
  // Registers memory with the port, before the first result is sent from it, and removes it, after
  // the last. remove_memory() returns false while a device may still read there. Control thread.
  Status add_memory(const NumaArena& memory);
  bool remove_memory(const NumaArena& memory);
  // See PipelineHost. Control thread.
  Result<wire::QueuePairAddress> connect(uint64_t owner, const wire::QueuePairAddress& peer);
  void disconnect(uint64_t owner);
  // Makes a lane of shared memory with the worker that has sent this hello; see
  // nic::ShmPort::attach(). Control thread.
  Status attach(uint64_t owner, const nic::LaneGrant& grant, const nic::ReceivedHello& hello,
                Descriptor& connection);
  // Returns the next event that the port's device has reported; nullopt if there is none.
  std::optional<std::string> next_port_event();
  // Hands a command to the pipeline and returns once it has been carried out. Control thread.
  void execute(pipeline::Command command);

  // Wakes the pipeline if it sleeps. Any thread.
  void wake();

  const topology::PipelinePlan& plan() const { return plan_; }
  uint16_t udp_port() const;
  const nic::Capabilities& capabilities() const { return capabilities_; }
  const pipeline::Counters& counters() const { return engine_.counters(); }
  const nic::PortCounters& port_counters() const;

 private:
  PipelineThread(const topology::PipelinePlan& plan, const config::Config& config, AnyPort port,
                 std::span<std::byte> flight);

  topology::PipelinePlan plan_;
  AnyPort port_;
  nic::Capabilities capabilities_;
  pipeline::Engine engine_;
  pipeline::PollPolicy policy_;
  Descriptor wake_;  // event; its descriptor is mailbox_.wake_fd
  pipeline::Mailbox mailbox_;
  uint64_t next_ticket_ = 1;
  std::thread thread_;
};

}  // namespace pbox::pipelines
