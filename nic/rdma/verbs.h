// Owning handles for libibverbs objects, which release the object when they are destroyed. Objects
// depend on each other: protection domains and completion channels on a context, the others on
// those. Owners declare handles in that order.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <memory>

namespace pbox::nic {

// Number of verbs objects that this process holds now. Any thread.
inline std::atomic<int64_t>& verbs_objects() {
  static std::atomic<int64_t> count{0};
  return count;
}

// The function in verbs.h has internal linkage, which a template argument must not have.
inline int free_memory_window(ibv_mw* window) {
  return ibv_dealloc_mw(window);
}

template <auto kDestroy>
struct VerbsDeleter {
  template <typename Object>
  void operator()(Object* object) const {
    // An error here means that the device was removed; its memory is released either way.
    kDestroy(object);
    verbs_objects().fetch_sub(1, std::memory_order_relaxed);
  }
};

template <typename Object, auto kDestroy>
class VerbsHandle {
 public:
  VerbsHandle() = default;
  explicit VerbsHandle(Object* object) : object_(object) {
    if (object != nullptr) verbs_objects().fetch_add(1, std::memory_order_relaxed);
  }
  Object* get() const { return object_.get(); }
  Object* operator->() const { return object_.get(); }
  explicit operator bool() const { return object_ != nullptr; }
  void reset() { object_.reset(); }

 private:
  std::unique_ptr<Object, VerbsDeleter<kDestroy>> object_;
};

using VerbsContext = VerbsHandle<ibv_context, ibv_close_device>;
using ProtectionDomain = VerbsHandle<ibv_pd, ibv_dealloc_pd>;
using MemoryRegion = VerbsHandle<ibv_mr, ibv_dereg_mr>;
using CompletionChannel = VerbsHandle<ibv_comp_channel, ibv_destroy_comp_channel>;
using CompletionQueue = VerbsHandle<ibv_cq, ibv_destroy_cq>;
using SharedReceiveQueue = VerbsHandle<ibv_srq, ibv_destroy_srq>;
using MemoryWindow = VerbsHandle<ibv_mw, free_memory_window>;
using QueuePair = VerbsHandle<ibv_qp, ibv_destroy_qp>;

}  // namespace pbox::nic
