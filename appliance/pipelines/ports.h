// Opens the ports of a plan. Starts what they need first (DPDK and its devices), and outlives them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "appliance/pipelines/any_port.h"
#include "appliance/topology/plan.h"
#include "config/config.h"

namespace pbox::pipelines {

class Ports {
 public:
  // Starts DPDK and opens the devices of the plan if data.port = dpdk. Control thread.
  static Result<std::unique_ptr<Ports>> start(const topology::Topology& topology,
                                              const config::Config& config);
  ~Ports();
  Ports(const Ports&) = delete;
  Ports& operator=(const Ports&) = delete;

  // Opens the port of one pipeline of the plan. To be called once for each pipeline.
  Result<AnyPort> open(const topology::PipelinePlan& pipeline, const config::Config& config);

  // Returns the capabilities that each opened device has, one line for the device and one for each
  // reason; empty for sockets.
  std::vector<std::string> describe() const;
  // Returns the names of the devices that have no link now.
  std::vector<std::string> links_down() const;
  // Returns the sum of the link speeds of all DPDK devices, as far as they are known now, in
  // Mbit/s.
  uint64_t device_mbps() const;

 private:
  struct Group;
  Ports();
  Result<AnyPort> open_kernel_port(const topology::PipelinePlan& pipeline,
                                   const config::Config& config);

  std::vector<Group> groups_;
  std::vector<std::string> described_;
};

}  // namespace pbox::pipelines
