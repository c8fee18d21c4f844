// The functions of libcudart and libcuda that staging uses, found at run time: libpbox needs no
// CUDA to be built or loaded. The libcudart is the one that the process has loaded already,
// torch's. Streams and events are the driver's handles, so those of any libcudart fit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace pbox::worker::cuda {

using Stream = void*;  // cudaStream_t; null: the default stream
using Event = void*;   // cudaEvent_t
using HostFunction = void (*)(void* user);

inline constexpr int kHostToDevice = 1;           // cudaMemcpyHostToDevice
inline constexpr int kDeviceToHost = 2;           // cudaMemcpyDeviceToHost
inline constexpr unsigned kEventNoTiming = 2;     // cudaEventDisableTiming
inline constexpr unsigned kHostPortable = 1;      // cudaHostAllocPortable
inline constexpr unsigned kHostMapped = 2;        // cudaHostAllocMapped
inline constexpr unsigned kWaitGreaterEqual = 0;  // CU_STREAM_WAIT_VALUE_GEQ

// Each function returns 0 or an error. Any thread may call them, but no host function.
struct Runtime {
  int (*get_device)(int* device);
  int (*set_device)(int device);
  int (*host_alloc)(void** memory, size_t bytes, unsigned flags);
  int (*free_host)(void* memory);
  int (*memcpy_async)(void* to, const void* from, size_t bytes, int kind, Stream stream);
  int (*memcpy_2d_async)(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                         size_t width, size_t height, int kind, Stream stream);
  int (*launch_host_func)(Stream stream, HostFunction function, void* user);
  int (*event_create)(Event* event, unsigned flags);
  int (*event_destroy)(Event event);
  int (*event_record)(Event event, Stream stream);
  int (*event_query)(Event event);
  int (*stream_wait_event)(Stream stream, Event event, unsigned flags);
  int (*stream_synchronize)(Stream stream);
  int (*stream_is_capturing)(Stream stream, int* status);
  int (*get_last_error)();
  const char* (*get_error_string)(int error);
  // libcuda's cuStreamWaitValue32_v2: the stream waits until the word at `address` has reached
  // `value`, cyclically.
  int (*stream_wait_value)(Stream stream, uint64_t address, uint32_t value, unsigned flags);

  // Returns ok for 0. Otherwise returns a kSystem error, "WHAT: text (number). REMEDY", and clears
  // the error in libcudart, where the next check of another library would find it.
  Status check(int error, const std::string& what, const std::string& remedy) const;
};

// Returns whether a file of this name, without its folder, is a libcudart: "libcudart.so.12", or
// "libcudart-9335f6a2.so.12". Python wheels that bring their libraries along put a hash there.
bool is_cudart(std::string_view name);

// Returns the functions. kNotFound: the process has no libcudart, or no driver. kVersionMismatch: a
// function is missing. The text says what to do. Any thread may call it.
Result<const Runtime*> load_runtime();

}  // namespace pbox::worker::cuda
