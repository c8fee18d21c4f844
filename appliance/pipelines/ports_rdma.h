// The RDMA side of Ports. Private to appliance/.
#pragma once

#include <string>

#include "appliance/pipelines/any_port.h"
#include "appliance/topology/plan.h"
#include "config/config.h"

namespace pbox::pipelines {

// Makes a port of the pipeline's socket and the queue pairs of its RDMA device. `said` gets a line
// about that device. Fails if this pboxd was built without libibverbs. Control thread.
Result<AnyPort> open_rdma(nic::SocketPort socket, const topology::PipelinePlan& pipeline,
                          const config::Config& config, std::string& said);

}  // namespace pbox::pipelines
