// Compiled only where the CUDA toolkit is installed. Checks the functions and constants that
// worker/cuda/runtime.h declares against CUDA's own headers.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <type_traits>

#include "worker/cuda/runtime.h"

namespace {

using pbox::worker::cuda::Runtime;

// Returns whether both types are passed alike: as pointers, or as integers or enums of one size.
template <typename Ours, typename Theirs>
constexpr bool is_alike() {
  if constexpr (std::is_pointer_v<Ours> || std::is_pointer_v<Theirs>) {
    return std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>;
  } else {
    return sizeof(Ours) == sizeof(Theirs) && !std::is_floating_point_v<Theirs>;
  }
}

template <typename Ours, typename Theirs>
struct Alike : std::false_type {};
template <typename Result, typename... Arguments, typename TheirResult, typename... Theirs>
struct Alike<Result (*)(Arguments...), TheirResult (*)(Theirs...)> {
  static constexpr bool check() {
    if constexpr (sizeof...(Arguments) == sizeof...(Theirs)) {
      return is_alike<Result, TheirResult>() && (is_alike<Arguments, Theirs>() && ...);
    }
    return false;
  }
  static constexpr bool value = check();
};

#define PBOX_EXPECT_ALIKE(ours, theirs) \
  static_assert(Alike<decltype(Runtime::ours), decltype(&(theirs))>::value, #theirs)

PBOX_EXPECT_ALIKE(get_device, cudaGetDevice);
PBOX_EXPECT_ALIKE(set_device, cudaSetDevice);
PBOX_EXPECT_ALIKE(host_alloc, cudaHostAlloc);
PBOX_EXPECT_ALIKE(free_host, cudaFreeHost);
PBOX_EXPECT_ALIKE(memcpy_async, cudaMemcpyAsync);
PBOX_EXPECT_ALIKE(memcpy_2d_async, cudaMemcpy2DAsync);
PBOX_EXPECT_ALIKE(launch_host_func, cudaLaunchHostFunc);
PBOX_EXPECT_ALIKE(event_create, cudaEventCreateWithFlags);
PBOX_EXPECT_ALIKE(event_destroy, cudaEventDestroy);
PBOX_EXPECT_ALIKE(event_record, cudaEventRecord);
PBOX_EXPECT_ALIKE(event_query, cudaEventQuery);
PBOX_EXPECT_ALIKE(stream_wait_event, cudaStreamWaitEvent);
PBOX_EXPECT_ALIKE(stream_synchronize, cudaStreamSynchronize);
PBOX_EXPECT_ALIKE(stream_is_capturing, cudaStreamIsCapturing);
PBOX_EXPECT_ALIKE(get_last_error, cudaGetLastError);
PBOX_EXPECT_ALIKE(get_error_string, cudaGetErrorString);
PBOX_EXPECT_ALIKE(stream_wait_value, cuStreamWaitValue32_v2);

static_assert(pbox::worker::cuda::kHostToDevice == cudaMemcpyHostToDevice);
static_assert(pbox::worker::cuda::kDeviceToHost == cudaMemcpyDeviceToHost);
static_assert(pbox::worker::cuda::kEventNoTiming == cudaEventDisableTiming);
static_assert(pbox::worker::cuda::kHostPortable == cudaHostAllocPortable);
static_assert(pbox::worker::cuda::kHostMapped == cudaHostAllocMapped);
static_assert(pbox::worker::cuda::kWaitGreaterEqual == CU_STREAM_WAIT_VALUE_GEQ);
static_assert(cudaSuccess == 0 && cudaStreamCaptureStatusNone == 0);

}  // namespace
