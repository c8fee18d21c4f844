#include "worker/protocol/encoded_tensor.h"

#include <algorithm>
#include <cfloat>

#include "nic/quantize/quantize.h"

namespace pbox::worker {

EncodedTensor::EncodedTensor(wire::Dtype dtype, uint64_t elements, uint32_t chunk_elements,
                             const quantize::RoundingSource& source)
    : dtype_(dtype),
      chunk_elements_(chunk_elements),
      chunk_bytes_(wire::payload_bytes(dtype, chunk_elements)),
      source_(source),
      blocks_(bytes(dtype, elements, chunk_elements)),
      residue_(elements, 0.0f) {
  PBOX_CHECK(wire::is_in_blocks(dtype) && elements > 0);
}

uint64_t EncodedTensor::bytes(wire::Dtype dtype, uint64_t elements, uint32_t chunk_elements) {
  const auto rest = static_cast<uint32_t>(elements % chunk_elements);
  return elements / chunk_elements * wire::payload_bytes(dtype, chunk_elements) +
         wire::payload_bytes(dtype, rest);
}

void EncodedTensor::encode(uint64_t first_element, const float* values, uint32_t count,
                           uint32_t round) {
  PBOX_DCHECK(values != nullptr && first_element + count <= residue_.size());
  quantize::RoundingSource source = source_;
  source.first_element += first_element;
  source.round = round;
  quantize::kernels().encode[quantize::format_index(dtype_)](
      blocks_.data() + offset(first_element), values, residue_.data() + first_element, count,
      quantize::key_of(source));
}

void EncodedTensor::decode(const std::byte* blocks, uint32_t count, float* values) const {
  PBOX_DCHECK(blocks != nullptr && values != nullptr);
  quantize::kernels().store[quantize::format_index(dtype_)](values, blocks, count, FLT_MAX);
}

}  // namespace pbox::worker
