// The fake driver, libcuda.so.1: see fake_cuda.h.
#include <cstdint>

extern "C" {

int fake_cuda_wait_value(void* stream, uint64_t address, uint32_t value);

int cuStreamWaitValue32_v2(void* stream, uint64_t address, uint32_t value, unsigned flags) {
  constexpr int kNotSupported = 801;
  return flags == 0 ? fake_cuda_wait_value(stream, address, value) : kNotSupported;
}

}  // extern "C"
