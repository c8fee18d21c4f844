#include "worker/cuda/runtime.h"

#include <dlfcn.h>
#include <link.h>

#include <mutex>

#include "base/check.h"

namespace pbox::worker::cuda {
namespace {

constexpr const char* kRemedy =
    "use a torch build for CUDA (torch.version.cuda names its release), or keep the tensors in "
    "host memory";

// Returns the path of the libcudart that the process has loaded, or "".
std::string loaded_path() {
  std::string path;
  const auto look = [](dl_phdr_info* library, size_t, void* user) {
    const std::string_view name = library->dlpi_name;
    if (!is_cudart(name.substr(name.rfind('/') + 1))) return 0;
    *static_cast<std::string*>(user) = name;
    return 1;
  };
  dl_iterate_phdr(look, &path);
  return path;
}

// Finds a function, whose type is that of `function`. Adds the name to `missing` if there is none.
template <typename F>
void find(void* library, const char* name, F*& function, std::string& missing) {
  function = reinterpret_cast<F*>(dlsym(library, name));
  if (function == nullptr) missing += std::string(missing.empty() ? "" : ", ") + name;
}

std::string fill(Runtime& runtime, void* cudart, void* driver) {
  std::string missing;
  find(cudart, "cudaGetDevice", runtime.get_device, missing);
  find(cudart, "cudaSetDevice", runtime.set_device, missing);
  find(cudart, "cudaHostAlloc", runtime.host_alloc, missing);
  find(cudart, "cudaFreeHost", runtime.free_host, missing);
  find(cudart, "cudaMemcpyAsync", runtime.memcpy_async, missing);
  find(cudart, "cudaMemcpy2DAsync", runtime.memcpy_2d_async, missing);
  find(cudart, "cudaLaunchHostFunc", runtime.launch_host_func, missing);
  find(cudart, "cudaEventCreateWithFlags", runtime.event_create, missing);
  find(cudart, "cudaEventDestroy", runtime.event_destroy, missing);
  find(cudart, "cudaEventRecord", runtime.event_record, missing);
  find(cudart, "cudaEventQuery", runtime.event_query, missing);
  find(cudart, "cudaStreamWaitEvent", runtime.stream_wait_event, missing);
  find(cudart, "cudaStreamSynchronize", runtime.stream_synchronize, missing);
  find(cudart, "cudaStreamIsCapturing", runtime.stream_is_capturing, missing);
  find(cudart, "cudaGetLastError", runtime.get_last_error, missing);
  find(cudart, "cudaGetErrorString", runtime.get_error_string, missing);
  find(driver, "cuStreamWaitValue32_v2", runtime.stream_wait_value, missing);
  return missing;
}

Result<Runtime> load() {
  const std::string path = loaded_path();
  if (path.empty()) {
    return Error{ErrorCode::kNotFound,
                 std::string("this process has loaded no libcudart.so, but a tensor is on a CUDA "
                             "device: ") +
                     kRemedy};
  }
  void* cudart = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (cudart == nullptr) {
    return Error{ErrorCode::kNotFound, path + ", which this process uses, cannot be opened: " +
                                           dlerror() + "; " + kRemedy};
  }
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) {
    return Error{ErrorCode::kNotFound, std::string("the CUDA driver cannot be loaded: ") +
                                           dlerror() + "; install the driver of this GPU"};
  }
  Runtime runtime{};
  if (const std::string missing = fill(runtime, cudart, driver); !missing.empty()) {
    return Error{ErrorCode::kVersionMismatch, path + " and libcuda.so.1 lack " + missing +
                                                  "; install CUDA 11.7 and driver 515, or newer"};
  }
  return runtime;
}

}  // namespace

bool is_cudart(std::string_view name) {
  return (name.starts_with("libcudart.") || name.starts_with("libcudart-")) &&
         name.find(".so") != std::string_view::npos;
}

Status Runtime::check(int error, const std::string& what, const std::string& remedy) const {
  PBOX_DCHECK(get_last_error != nullptr && get_error_string != nullptr);
  if (error == 0) return ok_status();
  get_last_error();
  const char* text = get_error_string(error);
  return Error{ErrorCode::kSystem, what + ": " + (text == nullptr ? "unknown error" : text) + " (" +
                                       std::to_string(error) + "). " + remedy};
}

Result<const Runtime*> load_runtime() {
  // A failure is not kept: the application may load libcudart later.
  static Runtime runtime;
  static bool is_loaded = false;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (!is_loaded) {
    const Result<Runtime> loaded = load();
    if (!loaded) return loaded.error();
    runtime = *loaded;
    is_loaded = true;
  }
  return &runtime;
}

}  // namespace pbox::worker::cuda
