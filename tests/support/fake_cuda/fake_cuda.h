/* A libcudart and a libcuda without a GPU: "device memory" is host memory, each stream is a thread,
 * and one more thread runs all host functions, one after another, as CUDA may. The library notes
 * what streams run, notices forbidden calls, and fails or delays calls on demand. Beside these
 * functions it has those of CUDA that worker/cuda/runtime.cc uses. */
#pragma once

#include <cstdint>

extern "C" {

/* A copy or a wait that a stream has run, or a host function. */
struct FakeCudaEntry {
  char kind[16]; /* "to_host", "to_device", "function", "gate" */
  uint64_t stream, bytes;
  uint64_t begin_ns, end_ns; /* by CLOCK_MONOTONIC */
};

/* Forgets the entries, faults, delays and violations. */
void fake_cuda_reset();
/* Copies at most `capacity` entries in the order in which they ended, and returns their number. */
uint64_t fake_cuda_entries(FakeCudaEntry* entries, uint64_t capacity);
/* Makes a call of the CUDA function return `error` and do nothing: call number `nth` from now on,
 * counted from 0, and all later ones if `forever`. */
void fake_cuda_fail(const char* function, uint64_t nth, int error, int forever);
void fake_cuda_delay_host_functions(uint64_t ms);
/* Makes copies take this long for each MiB. */
void fake_cuda_slow_copies(uint64_t us_per_mib);
/* Sets whether all streams count as being captured into a graph. */
void fake_cuda_capture(int is_capturing);
/* Returns the number of forbidden calls: CUDA in a host function, copies from or to memory that is
 * not pinned, pinned memory that is freed while a stream may use it. `last`: the text of the last
 * one, valid until this thread calls the function again. */
uint64_t fake_cuda_violations(const char** last);
/* Returns the bytes that are pinned now. fake_cuda_pins() returns the number of calls of
 * cudaHostAlloc that have succeeded since the reset. */
uint64_t fake_cuda_pinned_bytes();
uint64_t fake_cuda_pins();
/* Launches a kernel: the stream runs the function, which may take long. */
void fake_cuda_launch(void* stream, void (*function)(void*), void* user);
/* Lets `count` more copies to the host pass. The next ones wait until fake_cuda_release(). */
void fake_cuda_hold_after(uint64_t count);
void fake_cuda_release();
}
