// Memory that a device may use, and what to say where it may not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "nic/rdma/device.h"
#include "nic/rdma/verbs.h"

namespace pbox::nic {

Error verbs_error(const RdmaDevice& device, const std::string& what, int error_number);
// Says what to do, where it is known.
Error registration_error(const RdmaDevice& device, const std::string& what, uint64_t bytes,
                         int error_number);

// For queues that share registered memory (RdmaQueueOptions::domain).
Result<std::shared_ptr<ProtectionDomain>> make_protection_domain(const RdmaDevice& device);

// An application's memory, which the device may read and nobody may write. Also refused where a
// fork() would leave the device with pages that the application no longer writes to.
Result<MemoryRegion> register_to_read(const RdmaDevice& device, const ProtectionDomain& domain,
                                      const std::byte* memory, size_t bytes);

}  // namespace pbox::nic
