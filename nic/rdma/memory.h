// Registering memory with an RDMA device, and the errors for failed registrations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "nic/rdma/device.h"
#include "nic/rdma/verbs.h"

namespace pbox::nic {

// Returns an error "RDMA device NAME: <what>: <text of the errno>".
Error verbs_error(const RdmaDevice& device, const std::string& what, int error_number);
// Returns the error for memory, described by `what`, that could not be registered. For ENOMEM the
// text says what to do.
Error registration_error(const RdmaDevice& device, const std::string& what, uint64_t bytes,
                         int error_number);

// Creates a domain for queues that share registered memory (RdmaQueueOptions::domain).
Result<std::shared_ptr<ProtectionDomain>> make_protection_domain(const RdmaDevice& device);

// Registers an application's memory, which the device may then read but not write. No peer gets any
// access. Also fails on kernels where the device could keep reading old pages after the application
// calls fork().
Result<MemoryRegion> register_to_read(const RdmaDevice& device, const ProtectionDomain& domain,
                                      const std::byte* memory, size_t bytes);

}  // namespace pbox::nic
