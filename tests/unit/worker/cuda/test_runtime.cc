// Which of the libraries that a process has loaded is its libcudart.
#include <catch2/catch.hpp>

#include "worker/cuda/runtime.h"

namespace pbox::worker::cuda {

TEST_CASE("a libcudart is known by its name, with or without the hash of a Python wheel") {
  CHECK(is_cudart("libcudart.so.12"));
  CHECK(is_cudart("libcudart.so.11.0"));
  CHECK(is_cudart("libcudart-9335f6a2.so.12"));
  CHECK_FALSE(is_cudart("libcudart_helper.so"));
  CHECK_FALSE(is_cudart("libcuda.so.1"));
  CHECK_FALSE(is_cudart("libcudart-9335f6a2"));
  CHECK_FALSE(is_cudart(""));
}

}  // namespace pbox::worker::cuda
