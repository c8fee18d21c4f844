#include "worker/cuda/pinned_pool.h"

#include <algorithm>
#include <string>

#include "base/check.h"

namespace pbox::worker::cuda {
namespace {

// Sizes are multiples of this, so that tensors of similar sizes share blocks.
constexpr size_t kBlockBytes = 64u << 10;

}  // namespace

Result<std::unique_ptr<PinnedBlock>> PinnedBlock::make(const Runtime& runtime, size_t bytes) {
  PBOX_CHECK(bytes > 0);
  std::unique_ptr<PinnedBlock> block(new PinnedBlock(runtime, bytes));
  void* memory = nullptr;
  const Status pinned = runtime.check(
      runtime.host_alloc(&memory, bytes, kHostPortable | kHostMapped),
      "cudaHostAlloc cannot pin " + std::to_string(bytes) + " bytes of host memory",
      "Free host memory, raise the memory limit of the container, or use smaller buckets");
  if (!pinned) return pinned.error();
  block->memory_ = static_cast<std::byte*>(memory);
  const Status made = runtime.check(runtime.event_create(&block->event_, kEventNoTiming),
                                    "cudaEventCreateWithFlags",
                                    "An earlier error of CUDA may "
                                    "have left the device unusable: restart the process");
  if (!made) return made.error();
  return block;
}

PinnedBlock::~PinnedBlock() {
  // An error here repeats an earlier one.
  if (event_ != nullptr) static_cast<void>(runtime_.event_destroy(event_));
  if (memory_ != nullptr) static_cast<void>(runtime_.free_host(memory_));
}

bool PinnedBlock::is_passed() const {
  const int error = runtime_.event_query(event_);
  if (error != 0) runtime_.get_last_error();  // clears "not ready", which counts as an error
  return error == 0;
}

Result<std::unique_ptr<PinnedBlock>> PinnedPool::take(size_t bytes) {
  PBOX_CHECK(bytes > 0);
  auto best = free_.end();
  for (auto block = free_.begin(); block != free_.end(); ++block) {
    const size_t size = (*block)->bytes();
    // A block that is much too large stays free for the tensors that it was made for.
    if (size < bytes || size > 2 * bytes + kBlockBytes || !(*block)->is_passed()) continue;
    if (best == free_.end() || size < (*best)->bytes()) best = block;
  }
  if (best != free_.end()) {
    auto block = std::move(*best);
    free_.erase(best);
    return block;
  }
  const size_t rounded = (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
  auto made = PinnedBlock::make(runtime_, rounded);
  if (made) on_new_(**made);
  return made;
}

}  // namespace pbox::worker::cuda
