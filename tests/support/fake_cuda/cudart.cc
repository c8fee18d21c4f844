// The fake libcudart: see fake_cuda.h.
#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/fake_cuda/fake_cuda.h"

namespace {

constexpr int kNotPermitted = 800;
constexpr int kNotReady = 600;
constexpr int kInvalidValue = 1;

thread_local int current_device = 0;
thread_local int last_error = 0;
thread_local bool in_host_function = false;

uint64_t now_ns() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

// Tells whether the work that was queued before an event was recorded is done.
struct Record {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_done = false;
};

struct Event {
  std::shared_ptr<Record> record;
};

// A thread that runs tasks in order.
class Queue {
 public:
  Queue() : thread_([this] { run(); }) {}
  ~Queue() {
    {
      const std::lock_guard lock(mutex_);
      stops_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  void push(std::function<void()> task) {
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    changed_.notify_all();
  }
  void drain() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return tasks_.empty() && !is_busy_; });
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return stops_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      auto task = std::move(tasks_.front());
      tasks_.pop_front();
      is_busy_ = true;
      lock.unlock();
      task();
      lock.lock();
      is_busy_ = false;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool is_busy_ = false;
  bool stops_ = false;
  std::thread thread_;
};

struct Fault {
  uint64_t nth = 0;
  int error = 0;
  bool forever = false;
};

struct State {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<FakeCudaEntry> entries;
  std::map<std::string, Fault> faults;
  std::map<const std::byte*, size_t> pinned;  // bytes by address
  std::multiset<const std::byte*> in_use;     // pinned addresses that queued copies use
  std::string violation;
  uint64_t violations = 0, pins = 0;
  std::atomic<uint64_t> host_function_delay_ms = 0, copy_us_per_mib = 0;
  std::atomic<bool> is_capturing = false;
  std::optional<uint64_t> copies_left;  // copies to the host that are not held
};

// Returns the state, which is never destroyed, because threads may run until the process ends.
State& state() {
  static State& made = *new State;
  return made;
}

Queue& host_functions() {
  static Queue& made = *new Queue;
  return made;
}

Queue& stream_of(void* handle) {
  static Queue& default_stream = *new Queue;
  return handle == nullptr ? default_stream : *static_cast<Queue*>(handle);
}

void note_violation(const std::string& text) {
  const std::lock_guard lock(state().mutex);
  ++state().violations;
  state().violation = text;
}

// Returns the error of a call: that of a planned fault, or of a call in a host function; 0 if there
// is none.
int begin_call(const char* function) {
  if (in_host_function) {
    note_violation(std::string(function) + " in a host function");
    return last_error = kNotPermitted;
  }
  const std::lock_guard lock(state().mutex);
  const auto fault = state().faults.find(function);
  if (fault == state().faults.end()) return 0;
  if (fault->second.nth > 0) {
    --fault->second.nth;
    return 0;
  }
  last_error = fault->second.error;
  if (!fault->second.forever) state().faults.erase(fault);
  return last_error;
}

void wait_until_released() {
  std::unique_lock lock(state().mutex);
  std::optional<uint64_t>& left = state().copies_left;
  state().changed.wait(lock, [&] { return !left || *left > 0; });
  if (left) --*left;
}

void note(const char* kind, void* stream, uint64_t bytes, uint64_t begin_ns) {
  FakeCudaEntry entry{};
  std::strncpy(entry.kind, kind, sizeof(entry.kind) - 1);
  entry.stream = reinterpret_cast<uint64_t>(stream);
  entry.bytes = bytes;
  entry.begin_ns = begin_ns;
  entry.end_ns = now_ns();
  const std::lock_guard lock(state().mutex);
  state().entries.push_back(entry);
}

// Returns the start of the pinned memory that holds the range, or null.
const std::byte* pinned_block(const void* address, size_t bytes) {
  const auto* first = static_cast<const std::byte*>(address);
  auto block = state().pinned.upper_bound(first);
  if (block == state().pinned.begin()) return nullptr;
  --block;
  return first + bytes <= block->first + block->second ? block->first : nullptr;
}

int copy(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
         size_t height, int kind, void* stream) {
  const bool to_host = kind == 2;
  const void* host = to_host ? to : from;
  const size_t host_bytes = (to_host ? to_pitch : from_pitch) * (height - 1) + width;
  const std::byte* block = nullptr;
  {
    const std::lock_guard lock(state().mutex);
    block = pinned_block(host, host_bytes);
    if (block != nullptr) state().in_use.insert(block);
  }
  if (block == nullptr) {
    note_violation("a copy between the device and memory that is not pinned");
    return last_error = kInvalidValue;
  }
  stream_of(stream).push([=] {
    if (to_host) wait_until_released();
    const uint64_t begin_ns = now_ns();
    for (size_t row = 0; row < height; ++row) {
      std::memcpy(static_cast<std::byte*>(to) + row * to_pitch,
                  static_cast<const std::byte*>(from) + row * from_pitch, width);
    }
    const uint64_t us = state().copy_us_per_mib * (width * height) >> 20;
    if (us > 0) std::this_thread::sleep_for(std::chrono::microseconds(us));
    note(to_host ? "to_host" : "to_device", stream, width * height, begin_ns);
    const std::lock_guard lock(state().mutex);
    state().in_use.erase(state().in_use.find(block));
  });
  return 0;
}

}  // namespace

extern "C" {

void fake_cuda_reset(void) {
  fake_cuda_release();
  const std::lock_guard lock(state().mutex);
  state().entries.clear();
  state().faults.clear();
  state().violations = state().pins = 0;
  state().host_function_delay_ms = state().copy_us_per_mib = 0;
  state().is_capturing = false;
}

uint64_t fake_cuda_entries(FakeCudaEntry* entries, uint64_t capacity) {
  const std::lock_guard lock(state().mutex);
  const uint64_t count = std::min<uint64_t>(capacity, state().entries.size());
  std::copy_n(state().entries.begin(), count, entries);
  return count;
}

void fake_cuda_fail(const char* function, uint64_t nth, int error, int forever) {
  const std::lock_guard lock(state().mutex);
  state().faults[function] = {nth, error, forever != 0};
}

void fake_cuda_delay_host_functions(uint64_t ms) {
  state().host_function_delay_ms = ms;
}

void fake_cuda_slow_copies(uint64_t us_per_mib) {
  state().copy_us_per_mib = us_per_mib;
}

void fake_cuda_capture(int is_capturing) {
  state().is_capturing = is_capturing != 0;
}

uint64_t fake_cuda_violations(const char** last) {
  static thread_local std::string text;
  const std::lock_guard lock(state().mutex);
  text = state().violation;
  if (last != nullptr) *last = text.c_str();
  return state().violations;
}

uint64_t fake_cuda_pinned_bytes(void) {
  const std::lock_guard lock(state().mutex);
  uint64_t bytes = 0;
  for (const auto& [address, size] : state().pinned) bytes += size;
  return bytes;
}

uint64_t fake_cuda_pins(void) {
  const std::lock_guard lock(state().mutex);
  return state().pins;
}

void fake_cuda_hold_after(uint64_t count) {
  const std::lock_guard lock(state().mutex);
  state().copies_left = count;
}

void fake_cuda_launch(void* stream, void (*function)(void*), void* user) {
  stream_of(stream).push([=] { function(user); });
}

void fake_cuda_release(void) {
  {
    const std::lock_guard lock(state().mutex);
    state().copies_left.reset();
  }
  state().changed.notify_all();
}

// --- libcudart -----------------------------------------------------------------------------------

int cudaGetDevice(int* device) {
  if (const int error = begin_call("cudaGetDevice")) return error;
  *device = current_device;
  return 0;
}

int cudaSetDevice(int device) {
  if (const int error = begin_call("cudaSetDevice")) return error;
  current_device = device;
  return 0;
}

int cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  if (const int error = begin_call("cudaHostAlloc")) return error;
  auto* made = static_cast<std::byte*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096));
  if (made == nullptr) return last_error = 2;
  std::memset(made, 0xa5, bytes);  // no caller may rely on zeros
  const std::lock_guard lock(state().mutex);
  state().pinned[made] = bytes;
  ++state().pins;
  *memory = made;
  return 0;
}

int cudaFreeHost(void* memory) {
  if (const int error = begin_call("cudaFreeHost")) return error;
  const auto* block = static_cast<const std::byte*>(memory);
  bool is_in_use = false;
  {
    const std::lock_guard lock(state().mutex);
    is_in_use = state().in_use.contains(block);
    state().pinned.erase(block);
  }
  if (is_in_use) {
    note_violation("cudaFreeHost of memory that a stream uses");
    return 0;  // kept, so that the copy does not end the process
  }
  std::free(memory);
  return 0;
}

int cudaMemcpyAsync(void* to, const void* from, size_t bytes, int kind, void* stream) {
  if (const int error = begin_call("cudaMemcpyAsync")) return error;
  return copy(to, bytes, from, bytes, bytes, 1, kind, stream);
}

int cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                      size_t height, int kind, void* stream) {
  if (const int error = begin_call("cudaMemcpy2DAsync")) return error;
  return copy(to, to_pitch, from, from_pitch, width, height, kind, stream);
}

int cudaLaunchHostFunc(void* stream, void (*function)(void*), void* user) {
  if (const int error = begin_call("cudaLaunchHostFunc")) return error;
  stream_of(stream).push([=] {
    Record ran;
    host_functions().push([&] {
      const uint64_t begin_ns = now_ns();
      const uint64_t delay_ms = state().host_function_delay_ms;
      if (delay_ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
      in_host_function = true;
      function(user);
      in_host_function = false;
      note("function", stream, 0, begin_ns);
      const std::lock_guard lock(ran.mutex);
      ran.is_done = true;
      ran.changed.notify_all();
    });
    std::unique_lock lock(ran.mutex);
    ran.changed.wait(lock, [&] { return ran.is_done; });
  });
  return 0;
}

int cudaEventCreateWithFlags(void** event, unsigned) {
  if (const int error = begin_call("cudaEventCreateWithFlags")) return error;
  *event = new Event;
  return 0;
}

int cudaEventDestroy(void* event) {
  if (const int error = begin_call("cudaEventDestroy")) return error;
  delete static_cast<Event*>(event);
  return 0;
}

int cudaEventRecord(void* event, void* stream) {
  if (const int error = begin_call("cudaEventRecord")) return error;
  auto record = std::make_shared<Record>();
  {
    const std::lock_guard lock(state().mutex);
    static_cast<Event*>(event)->record = record;
  }
  stream_of(stream).push([record] {
    const std::lock_guard lock(record->mutex);
    record->is_done = true;
    record->changed.notify_all();
  });
  return 0;
}

int cudaEventQuery(void* event) {
  if (const int error = begin_call("cudaEventQuery")) return error;
  const std::lock_guard lock(state().mutex);
  const auto& record = static_cast<Event*>(event)->record;
  if (record == nullptr) return 0;
  const std::lock_guard record_lock(record->mutex);
  return record->is_done ? 0 : last_error = kNotReady;
}

int cudaStreamWaitEvent(void* stream, void* event, unsigned) {
  if (const int error = begin_call("cudaStreamWaitEvent")) return error;
  std::shared_ptr<Record> record;
  {
    const std::lock_guard lock(state().mutex);
    record = static_cast<Event*>(event)->record;
  }
  if (record == nullptr) return 0;
  stream_of(stream).push([record] {
    std::unique_lock lock(record->mutex);
    record->changed.wait(lock, [&] { return record->is_done; });
  });
  return 0;
}

int cudaEventSynchronize(void* event) {
  if (const int error = begin_call("cudaEventSynchronize")) return error;
  std::shared_ptr<Record> record;
  {
    const std::lock_guard lock(state().mutex);
    record = static_cast<Event*>(event)->record;
  }
  if (record == nullptr) return 0;
  std::unique_lock lock(record->mutex);
  record->changed.wait(lock, [&] { return record->is_done; });
  return 0;
}

int cudaStreamCreateWithFlags(void** stream, unsigned) {
  if (const int error = begin_call("cudaStreamCreateWithFlags")) return error;
  *stream = new Queue;
  return 0;
}

int cudaStreamDestroy(void* stream) {
  if (const int error = begin_call("cudaStreamDestroy")) return error;
  delete static_cast<Queue*>(stream);
  return 0;
}

int cudaStreamSynchronize(void* stream) {
  if (const int error = begin_call("cudaStreamSynchronize")) return error;
  stream_of(stream).drain();
  return 0;
}

int cudaStreamIsCapturing(void*, int* status) {
  if (const int error = begin_call("cudaStreamIsCapturing")) return error;
  *status = state().is_capturing ? 1 : 0;
  return 0;
}

int cudaGetLastError(void) {
  return std::exchange(last_error, 0);
}

const char* cudaGetErrorString(int error) {
  switch (error) {
    case 2: return "out of memory";
    case 700: return "an illegal memory access was encountered";
    case 801: return "operation not supported";
    default: return "fake error";
  }
}

// Called by the fake driver.
int fake_cuda_wait_value(void* stream, uint64_t address, uint32_t value) {
  if (const int error = begin_call("cuStreamWaitValue32")) return error;
  stream_of(stream).push([=] {
    const uint64_t begin_ns = now_ns();
    auto* word = std::bit_cast<uint32_t*>(address);
    while (static_cast<int32_t>(std::atomic_ref(*word).load(std::memory_order_acquire) - value) <
           0) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    note("gate", stream, value, begin_ns);
  });
  return 0;
}

}  // extern "C"
