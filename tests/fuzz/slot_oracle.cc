#include "tests/fuzz/slot_oracle.h"

#include <cmath>
#include <cstring>
#include <type_traits>

#include "base/check.h"
#include "nic/wire/chunk_layout.h"
#include "pipeline/reduce/reference.h"

namespace pbox::fuzz {
namespace {

using wire::Combine;
using wire::Dtype;

// Calls `function` with a value of the type in which elements are combined.
template <typename Function>
void with_type(Dtype dtype, const Function& function) {
  switch (dtype) {
    case Dtype::kF32:
    case Dtype::kF16:
    case Dtype::kBf16: return function(float{});
    case Dtype::kF64: return function(double{});
    case Dtype::kQ8:
    case Dtype::kQ4: break;  // slots have no blocks
    case Dtype::kI32: return function(int32_t{});
    case Dtype::kI64: return function(int64_t{});
    case Dtype::kU8: return function(uint8_t{});
    case Dtype::kI8: return function(int8_t{});
  }
}

template <typename T>
T load(const std::byte* bytes, size_t index) {
  T value;
  std::memcpy(&value, bytes + index * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
T combined(Combine combine, T left, T right) {
  if constexpr (std::is_floating_point_v<T>) {
    if (combine <= Combine::kMean) return left + right;
    if (std::isnan(left) || std::isnan(right)) return NAN;
  } else {
    using Unsigned = std::make_unsigned_t<T>;
    if (combine <= Combine::kMean) {
      return static_cast<T>(static_cast<Unsigned>(left) + static_cast<Unsigned>(right));
    }
  }
  return (combine == Combine::kMin) == (left < right) ? left : right;
}

template <typename T>
bool is_same(T left, T right) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(left) && std::isnan(right)) return true;
  }
  return left == right;
}

// Returns the elements of a payload, in the type in which they are combined.
std::vector<std::byte> widened(Dtype dtype, const std::byte* payload, uint32_t bytes) {
  const uint32_t count = bytes / wire::dtype_bytes(dtype);
  std::vector<std::byte> wide(size_t{count} * wire::combined_bytes(dtype));
  if (wire::combined_bytes(dtype) == wire::dtype_bytes(dtype)) {
    if (bytes > 0) std::memcpy(wide.data(), payload, bytes);
    return wide;
  }
  for (uint32_t index = 0; index < count; ++index) {
    const float value = reduce::reference::load_element(dtype, payload, index);
    std::memcpy(&wide[index * sizeof(value)], &value, sizeof(value));
  }
  return wide;
}

}  // namespace

bool SlotOracle::disagrees(const wire::Header& header) const {
  wire::RoundShape shape;
  return wire::read_shape(header, shape) && (!open_.is_shaped || !(shape == open_.shape));
}

uint64_t SlotOracle::aggregated(const wire::Parsed& push, bool is_copy) {
  const wire::Header& header = push.header;
  wire::RoundShape shape;
  PBOX_CHECK(wire::read_shape(header, shape) && shape.owner < shape_.workers);
  PBOX_CHECK(shape.fragment_count <= shape_.fragments());
  if (!open_.is_shaped) {
    open_ = {.shape = shape, .is_shaped = true, .is_copy = is_copy};
    open_.value.resize(shape_.elements);
  }
  PBOX_CHECK(shape == open_.shape && header.fragment < shape.fragment_count);
  const bool is_last = header.fragment + 1u == shape.fragment_count;
  const uint64_t all = wire::full_mask(shape.fragment_count);
  const uint64_t unused = wire::full_mask(shape_.fragments()) & ~all;
  if (wire::is_empty_push(header)) {
    PBOX_CHECK(is_last && header.payload_bytes == 0);
    return all | unused;
  }
  PBOX_CHECK(header.payload_bytes > 0 && header.payload_bytes <= kFragmentBytes);
  PBOX_CHECK(header.payload_bytes % wire::dtype_bytes(shape.dtype) == 0);
  PBOX_CHECK(is_last || header.payload_bytes == kFragmentBytes);
  PBOX_CHECK(!is_last || open_.last_bytes == 0 || open_.last_bytes == header.payload_bytes);
  if (is_last) open_.last_bytes = header.payload_bytes;
  combine(push);
  open_.combined |= uint64_t{1} << header.fragment;
  return uint64_t{1} << header.fragment | unused;
}

void SlotOracle::combine(const wire::Parsed& push) {
  const wire::Header& header = push.header;
  const Dtype dtype = open_.shape.dtype;
  const bool is_copied = open_.shape.combine == Combine::kCopy;
  const uint32_t width = is_copied ? wire::dtype_bytes(dtype) : wire::combined_bytes(dtype);
  const uint32_t first = header.fragment * kFragmentBytes / wire::dtype_bytes(dtype);
  const uint32_t count = header.payload_bytes / wire::dtype_bytes(dtype);
  PBOX_CHECK((first + count) * width <= open_.value.size());
  std::byte* const into = &open_.value[size_t{first} * width];
  if (is_copied) {
    std::memcpy(into, push.payload, header.payload_bytes);
    return;
  }
  const auto values = widened(dtype, push.payload, header.payload_bytes);
  if ((open_.combined >> header.fragment & 1) == 0) {
    std::memcpy(into, values.data(), values.size());
    return;
  }
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    for (uint32_t index = 0; index < count; ++index) {
      const T value =
          combined(open_.shape.combine, load<T>(into, index), load<T>(values.data(), index));
      std::memcpy(into + index * sizeof(T), &value, sizeof(T));
    }
  });
}

void SlotOracle::finish() {
  const wire::RoundShape& shape = open_.shape;
  finished_ = shape;
  result_.clear();
  if (open_.last_bytes > 0) {
    result_.resize((shape.fragment_count - 1u) * size_t{kFragmentBytes} + open_.last_bytes);
    const size_t count = result_.size() / wire::dtype_bytes(shape.dtype);
    if (shape.combine == Combine::kMean && !open_.is_copy) {
      with_type(shape.dtype, [&](auto type) {
        using T = decltype(type);
        for (size_t index = 0; index < count; ++index) {
          const T value =
              static_cast<T>(load<T>(open_.value.data(), index) / static_cast<T>(shape_.workers));
          std::memcpy(&open_.value[index * sizeof(T)], &value, sizeof(T));
        }
      });
    }
    const bool is_narrowed = shape.combine != Combine::kCopy &&
                             wire::combined_bytes(shape.dtype) != wire::dtype_bytes(shape.dtype);
    if (is_narrowed) {
      reduce::reference::narrow(shape.dtype, result_.data(),
                                reinterpret_cast<const float*>(open_.value.data()), count);
    } else {
      std::memcpy(result_.data(), open_.value.data(), result_.size());
    }
  }
  open_ = {};
}

void SlotOracle::check_result(uint32_t rank, const wire::Header& header,
                              const std::byte* payload) const {
  PBOX_CHECK(!result_.empty() && finished_.is_sent_to(rank));
  PBOX_CHECK(header.fragment < finished_.fragment_count);
  PBOX_CHECK(((header.flags & wire::flag::kLast) != 0) ==
             (header.fragment + 1u == finished_.fragment_count));
  PBOX_CHECK(header.timestamp_us == finished_.digest);
  PBOX_CHECK(header.dtype_scale == static_cast<uint16_t>(finished_.dtype));
  const auto bytes = static_cast<uint32_t>(result_.size());
  PBOX_CHECK(header.payload_bytes == wire::fragment_length(bytes, kFragmentBytes, header.fragment));
  const std::byte* const expected = result_.data() + size_t{header.fragment} * kFragmentBytes;
  if (finished_.combine == Combine::kCopy) {
    PBOX_CHECK(std::memcmp(payload, expected, header.payload_bytes) == 0);
    return;
  }
  const auto left = widened(finished_.dtype, payload, header.payload_bytes);
  const auto right = widened(finished_.dtype, expected, header.payload_bytes);
  with_type(finished_.dtype, [&](auto type) {
    using T = decltype(type);
    for (size_t index = 0; index < left.size() / sizeof(T); ++index) {
      PBOX_CHECK(is_same(load<T>(left.data(), index), load<T>(right.data(), index)));
    }
  });
}

}  // namespace pbox::fuzz
