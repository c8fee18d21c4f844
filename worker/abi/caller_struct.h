// Structs of the C ABI (pbox.h), which grow while PBOX_ABI_VERSION stays the same. A program states
// the size of the struct that it was compiled with, which may be smaller or larger than this
// library's. Fields are only added at the end, and 0 is their default. So a field that one side
// does not have is 0 for the other.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <type_traits>

#include "pbox/pbox.h"

namespace pbox::worker {

// A larger struct_size is not a size: the program has not set the field.
inline constexpr uint32_t kCallerStructBytesMax = 4096;

// Returns the size of a struct whose last field ends after `end` bytes.
template <typename T>
constexpr uint32_t struct_bytes(size_t end) {
  return static_cast<uint32_t>((end + alignof(T) - 1) / alignof(T) * alignof(T));
}

// Sizes of the structs of release 0.1.0, whose functions took no size. No program has smaller ones.
inline constexpr uint32_t kOptionsBytesFirst =
    struct_bytes<pbox_options>(offsetof(pbox_options, backup) + sizeof(uint32_t));
inline constexpr uint32_t kOptimizerBytesFirst = struct_bytes<pbox_optimizer_options>(
    offsetof(pbox_optimizer_options, weight_decay) + sizeof(float));

// Size of the first version of pbox_operation. Programs have arrays of that struct.
inline constexpr uint32_t kOperationBytesFirst =
    struct_bytes<pbox_operation>(offsetof(pbox_operation, weight) + sizeof(float));

// Fills the first `caller_bytes` bytes at `caller` with `value`, and with 0 after its end.
template <typename T>
void store_for_caller(T value, T* caller, size_t caller_bytes) {
  static_assert(std::is_trivially_copyable_v<T>);
  const size_t known = std::min(caller_bytes, sizeof(T));
  value.struct_size = static_cast<uint32_t>(caller_bytes);
  std::memcpy(static_cast<void*>(caller), &value, known);
  std::memset(reinterpret_cast<std::byte*>(caller) + known, 0, caller_bytes - known);
}

// Returns whether the caller has set struct_size, to at least `bytes_min`.
template <typename T>
bool has_size(const T* caller, size_t bytes_min) {
  return caller != nullptr && caller->struct_size >= bytes_min &&
         caller->struct_size <= kCallerStructBytesMax;
}

// Returns a caller's struct of `caller_bytes` bytes; fields that the caller does not have are 0.
// Returns nullopt if the caller's struct is larger than this library's and a field that this
// library does not have is not 0.
template <typename T>
std::optional<T> load_element(const std::byte* bytes, size_t caller_bytes) {
  static_assert(std::is_trivially_copyable_v<T>);
  const size_t known = std::min(caller_bytes, sizeof(T));
  if (std::any_of(bytes + known, bytes + caller_bytes,
                  [](std::byte one) { return one != std::byte{0}; })) {
    return std::nullopt;
  }
  T value{};
  std::memcpy(static_cast<void*>(&value), bytes, known);
  return value;
}

// Like load_element(), for a struct that states its own size. Call it only if has_size() returns
// true.
template <typename T>
std::optional<T> load_from_caller(const T* caller) {
  return load_element<T>(reinterpret_cast<const std::byte*>(caller), caller->struct_size);
}

}  // namespace pbox::worker
