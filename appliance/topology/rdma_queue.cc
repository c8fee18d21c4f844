#include "appliance/topology/rdma_queue.h"

namespace pbox::topology {

#ifdef PBOX_HAS_RDMA

namespace {

// Landing slots for all workers together: a quarter more than the 1,024 receive slots. The credits
// cover at most 3/4 of those, and a worker asks for a quarter more slots than its credit, plus one.
constexpr uint32_t kLandingSlots = 1280;
constexpr uint32_t kHeldPackets = 512;

}  // namespace

nic::RdmaQueueOptions rdma_queue_options(const config::Config& config) {
  const bool is_off = config.memory.hugepages == config::OnOffAuto::kOff;
  nic::RdmaQueueOptions options;
  options.hugepages = is_off ? Hugepages::kNever : Hugepages::kIfFree;
  options.held_packets_max = kHeldPackets;
  if (config.rdma.mode == config::RdmaMode::kWriteImm) options.landing_slots = kLandingSlots;
  return options;
}

uint64_t rdma_packet_bytes(const config::Config& config) {
  return nic::rdma_queue_bytes(rdma_queue_options(config));
}

#else

uint64_t rdma_packet_bytes(const config::Config& /*config*/) {
  return 0;
}

#endif

}  // namespace pbox::topology
