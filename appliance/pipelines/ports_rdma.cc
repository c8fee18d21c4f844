#include "appliance/pipelines/ports_rdma.h"

#include "appliance/topology/rdma_queue.h"
#include "config/address.h"

namespace pbox::pipelines {

#ifdef PBOX_HAS_RDMA
Result<AnyPort> open_rdma(nic::SocketPort socket, const topology::PipelinePlan& pipeline,
                          const config::Config& config, std::string& said) {
  nic::RdmaDeviceOptions options{.name = pipeline.rdma_device};
  if (config.rdma.gid_index != config::kGidIndexAuto) {
    options.gid_index = static_cast<uint32_t>(config.rdma.gid_index);
  }
  if (!config::is_wildcard_address(pipeline.address) &&
      !config::is_loopback_address(pipeline.address)) {
    const auto near = nic::parse_endpoint(pipeline.address, 0);
    if (near) options.near = *near;
  }
  const auto device = nic::RdmaDevice::open(options);
  if (!device) return device.error();
  said = (*device)->describe();
  nic::RdmaQueueOptions wanted = topology::rdma_queue_options(config);
  wanted.device = *device;
  wanted.numa_node = pipeline.node;
  auto queue = nic::RdmaQueue::open(wanted);
  if (!queue) return queue.error();
  auto port = nic::RdmaPort::open(std::move(socket), std::move(*queue));
  if (!port) return port.error();
  return AnyPort(std::move(*port));
}

#else

Result<AnyPort> open_rdma(nic::SocketPort /*socket*/, const topology::PipelinePlan& /*pipeline*/,
                          const config::Config& /*config*/, std::string& /*said*/) {
  return Error{ErrorCode::kUnavailable,
               "data.port = rdma, but this pboxd was built without libibverbs; install "
               "libibverbs-dev and build it again, or set data.port = socket"};
}

#endif

}  // namespace pbox::pipelines
