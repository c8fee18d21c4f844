#include "nic/rdma/memory.h"

#include <cerrno>

#include "nic/lock_hint.h"

namespace pbox::nic {

Error verbs_error(const RdmaDevice& device, const std::string& what, int error_number) {
  return system_error("RDMA device " + device.name() + ": " + what, error_number);
}

Error registration_error(const RdmaDevice& device, const std::string& what, uint64_t bytes,
                         int error_number) {
  Error error = verbs_error(device, "cannot register " + what, error_number);
  if (error_number != ENOMEM) return error;
  error.message.append("; registering locks ").append(std::to_string((bytes >> 20) + 1));
  error.message.append(" MiB: ").append(kLockHint);
  return error;
}

Result<std::shared_ptr<ProtectionDomain>> make_protection_domain(const RdmaDevice& device) {
  ProtectionDomain domain(ibv_alloc_pd(device.context()));
  if (!domain) return verbs_error(device, "cannot create a protection domain", errno);
  return std::make_shared<ProtectionDomain>(std::move(domain));
}

Result<MemoryRegion> register_to_read(const RdmaDevice& device, const ProtectionDomain& domain,
                                      const std::byte* memory, size_t bytes) {
  // Newer kernels copy registered pages at fork(). With older kernels it is undefined whether
  // parent or child keeps the page that the device reads.
  if (ibv_is_fork_initialized() == IBV_FORK_DISABLED) {
    return Error{ErrorCode::kSystem,
                 "RDMA device " + device.name() +
                     ": cannot register the application's memory, because this kernel does not "
                     "preserve it across fork(); use Linux 5.12 or later"};
  }
  MemoryRegion region(ibv_reg_mr(domain.get(), const_cast<std::byte*>(memory), bytes, 0));
  if (!region) return registration_error(device, "the application's memory", bytes, errno);
  return region;
}

}  // namespace pbox::nic
