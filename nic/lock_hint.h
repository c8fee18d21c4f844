// What to do where a device cannot be given memory to read.
#pragma once

namespace pbox::nic {

// Of an emulated IOMMU the kernel says the same as of a limit: it cannot map what lies beyond.
inline constexpr char kLockHint[] =
    "let this process lock it (LimitMEMLOCK=infinity in a unit, ulimit -l unlimited, or "
    "CAP_IPC_LOCK); if it may already, and this is a guest, give its IOMMU 48 address bits in "
    "place of 39 (QEMU: intel-iommu,aw-bits=48)";

}  // namespace pbox::nic
