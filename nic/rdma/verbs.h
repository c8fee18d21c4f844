// What libibverbs hands out, each owned by one handle that gives it back. In the order in which
// they stand on each other: a context, on that protection domains and completion channels, on those
// the rest; owners declare them in that order.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <memory>

namespace pbox::nic {

// How many verbs objects this process holds now. Any thread.
inline std::atomic<int64_t>& verbs_objects() {
  static std::atomic<int64_t> count{0};
  return count;
}

// verbs.h's own has no linkage, which a type's argument must have.
inline int free_memory_window(ibv_mw* window) {
  return ibv_dealloc_mw(window);
}

template <auto kDestroy>
struct VerbsDeleter {
  template <typename Object>
  void operator()(Object* object) const {
    // What a device that was pulled says to that changes nothing: its memory is gone either way.
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
