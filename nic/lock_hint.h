// A remedy for errors that occur when memory cannot be pinned for a device.
#pragma once

namespace pbox::nic {

// The kernel reports the same error for two causes: the limit on locked memory, and an emulated
// IOMMU with too few address bits to map the memory. The text names both remedies.
inline constexpr char kLockHint[] =
    "allow this process to lock the memory (LimitMEMLOCK=infinity in a unit, ulimit -l unlimited, "
    "or "
    "CAP_IPC_LOCK); if that is allowed already and this host is a virtual machine, give its IOMMU "
    "48 address bits instead of 39 (QEMU: intel-iommu,aw-bits=48)";

}  // namespace pbox::nic
