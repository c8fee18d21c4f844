// The ports of a plan: whatever they stand on (DPDK and its devices) is started first and outlives
// them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "appliance/pipelines/any_port.h"
#include "appliance/topology/plan.h"
#include "config/config.h"

namespace pbox::appliance {

class Ports {
 public:
  // With data.port = dpdk: starts DPDK and opens the devices of the plan. Control thread.
  static Result<std::unique_ptr<Ports>> start(const Topology& topology,
                                              const config::Config& config);
  ~Ports();
  Ports(const Ports&) = delete;
  Ports& operator=(const Ports&) = delete;

  // The port of one pipeline of the plan; once for each.
  Result<AnyPort> open(const PipelinePlan& pipeline, const config::Config& config);

  // What each device turned out to be able to do, a line each and one for each reason; empty for
  // sockets.
  std::vector<std::string> describe() const;
  // Devices that have no link now; by name.
  std::vector<std::string> links_down() const;

 private:
  struct Group;
  Ports();
  Result<AnyPort> open_kernel_port(const PipelinePlan& pipeline, const config::Config& config);

  std::vector<Group> groups_;
  std::vector<std::string> described_;
};

}  // namespace pbox::appliance
