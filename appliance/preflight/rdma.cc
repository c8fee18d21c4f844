#include <algorithm>

#include "appliance/preflight/checks.h"

namespace pbox::preflight::checks {
namespace {

Check check_access(const host::HostFacts& facts, const Result<topology::Topology>& topology) {
  const std::string name = "rdma-devices";
  if (!topology) return ok(name, "not checked: there is no plan");
  std::string used;
  std::string closed;
  for (const auto& device : facts.rdma) {
    const auto& pipelines = topology->pipelines;
    const bool is_used = std::any_of(
        pipelines.begin(), pipelines.end(),
        [&](const topology::PipelinePlan& each) { return each.rdma_device == device.name; });
    if (!is_used) continue;
    append(used, ", ", device.name);
    if (!device.is_accessible) append(closed, ", ", device.name);
  }
  if (closed.empty()) return ok(name, used + " can be opened");
  return fail(name, "this process may not open " + closed + " (/dev/infiniband/uverbs*)",
              "copy the shipped pboxd-rdma.conf to /etc/systemd/system/pboxd.service.d, or run as "
              "root; modprobe ib_uverbs if there is no such file");
}

// Checks that packet buffers and the memory of jobs can be locked: RDMA sends results from where
// they lie.
Check check_memlock(const host::HostFacts& facts, const Result<topology::Topology>& topology) {
  const std::string name = "memlock";
  if (facts.memlock_bytes == host::kUnlimited) return ok(name, "unlimited");
  const std::string limit = mebibytes(facts.memlock_bytes);
  if (facts.can_lock_memory) return ok(name, limit + ", which CAP_IPC_LOCK lifts");
  if (!topology) return ok(name, "not checked: there is no plan");
  uint64_t packets = 0;
  for (const auto& node : topology->nodes) packets += node.packet_memory_bytes;
  const uint64_t all = packets + topology->job_memory_bytes;
  const std::string needs = "packets lock " + mebibytes(packets) + ", jobs up to " +
                            mebibytes(topology->job_memory_bytes) + " more";
  const std::string remedy =
      "LimitMEMLOCK=infinity, as the shipped unit has it, or ulimit -l unlimited";
  if (facts.memlock_bytes < packets) return fail(name, limit + ", but " + needs, remedy);
  if (facts.memlock_bytes < all) {
    return warn(name, limit + ", but " + needs + ": large jobs will be refused", remedy);
  }
  return ok(name, limit + "; " + needs);
}

}  // namespace

std::vector<Check> rdma_checks(const host::HostFacts& facts,
                               const Result<topology::Topology>& topology) {
  return {check_access(facts, topology), check_memlock(facts, topology)};
}

}  // namespace pbox::preflight::checks
