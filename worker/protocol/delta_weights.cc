#include "worker/protocol/delta_weights.h"

#include <cfloat>
#include <cstring>

#include "nic/quantize/quantize.h"
#include "worker/protocol/encoded_tensor.h"

namespace pbox::worker {

DeltaWeights::DeltaWeights(wire::Dtype dtype, uint64_t elements, uint32_t chunk_elements)
    : dtype_(dtype),
      chunk_elements_(chunk_elements),
      chunk_bytes_(wire::payload_bytes(dtype, chunk_elements)),
      weights_(elements),
      blocks_(EncodedTensor::bytes(dtype, elements, chunk_elements)),
      rounds_((elements + chunk_elements - 1) / chunk_elements) {
  PBOX_CHECK(wire::is_in_blocks(dtype) && elements > 0);
}

void DeltaWeights::store_full(uint64_t first, uint32_t begin, const std::byte* bytes,
                              size_t count) {
  PBOX_DCHECK((first + begin / sizeof(float)) * sizeof(float) + count <=
              weights_.size() * sizeof(float));
  rounds_[chunk_of(first)].reset();
  std::memcpy(reinterpret_cast<std::byte*>(weights_.data() + first) + begin, bytes, count);
}

void DeltaWeights::store_delta(uint64_t first, uint32_t begin, const std::byte* bytes,
                               size_t count) {
  PBOX_DCHECK(chunk_of(first) * chunk_bytes_ + begin + count <= blocks_.size());
  std::memcpy(blocks(first) + begin, bytes, count);
}

void DeltaWeights::add(uint64_t first, uint32_t count, uint32_t round) {
  PBOX_DCHECK(first + count <= weights_.size());
  PBOX_DCHECK(this->round(first) == round - 1);
  static_cast<void>(quantize::kernels().add[quantize::format_index(dtype_)](
      weights_.data() + first, blocks(first), count, FLT_MAX));
  take(first, round);
}

}  // namespace pbox::worker
