// Memory of a worker that a box on the same host reads in place (nic/shm), so that inputs of
// operations in it are not copied. Any thread may use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "base/memory_file.h"
#include "nic/shm/lane.h"
#include "worker/protocol/session_spec.h"

namespace pbox::worker {

class SharedHeap {
 public:
  // Pages get their memory when they are first touched, so `bytes` may be generous.
  static Result<std::shared_ptr<SharedHeap>> make(size_t bytes);
  // Makes one with room for inputs and outputs of these tensors. Returns null if the box cannot
  // read them in place: if none of the ports may share memory, or if the model is not bsp, because
  // an operation may then end before the box has read all of its input.
  static std::shared_ptr<SharedHeap> for_job(const std::vector<std::string>& ports,
                                             const wire::SyncSpec& job,
                                             const std::vector<TensorSpec>& tensors);
  ~SharedHeap();
  SharedHeap(const SharedHeap&) = delete;
  SharedHeap& operator=(const SharedHeap&) = delete;

  // Returns memory that begins on a cache line; null if not enough is left. A forked child shares
  // the memory, so it gets none and frees none.
  std::byte* allocate(size_t bytes);
  void free(std::byte* memory);

  const Descriptor& file() const { return file_; }
  nic::LaneMemory memory() const { return {mapping_.data(), mapping_.size()}; }

 private:
  class Places;

  SharedHeap(Descriptor file, Mapping mapping);

  int owner_pid_;
  Descriptor file_;
  Mapping mapping_;
  std::unique_ptr<Places> places_;
};

// Returns memory for a caller: from the heap if it has room, otherwise ordinary memory; `heap` may
// be null. The memory is filled with zeros, begins on a cache line and stays until free_shared(),
// even if nobody else needs the heap any more. Returns null if there is no memory.
std::byte* allocate_shared(const std::shared_ptr<SharedHeap>& heap, size_t bytes);
// Returns false if allocate_shared() has not returned this memory, or it is free already.
bool free_shared(std::byte* memory);

}  // namespace pbox::worker
