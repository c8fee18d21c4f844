#include "worker/session.h"

#include <algorithm>

#include "nic/wire/chunk_layout.h"

namespace pbox::worker {
namespace {

bool sizes_are_sane(const SessionSpec& spec) {
  return spec.fragment_bytes >= limits::kFragmentBytesMin &&
         spec.fragment_bytes <= limits::kFragmentBytesMax && spec.chunk_bytes > 0 &&
         spec.chunk_bytes <= limits::kChunkBytesMax &&
         wire::fragment_count(spec.chunk_bytes, spec.fragment_bytes) <= limits::kFragmentCountMax;
}

uint64_t chunk_count(const SessionSpec& spec, const std::vector<TensorSpec>& tensors) {
  uint64_t chunks = 0;
  for (const TensorSpec& tensor : tensors) {
    chunks +=
        wire::chunk_count(tensor.elements * wire::dtype_bytes(tensor.dtype), spec.chunk_bytes);
  }
  return chunks;
}

}  // namespace

Result<SessionSpec> parse_session(const control::Session& session,
                                  const std::vector<TensorSpec>& tensors) {
  SessionSpec spec;
  spec.epoch = session.epoch();
  spec.generation = static_cast<uint16_t>(session.generation());
  spec.fragment_bytes = session.fragment_bytes();
  spec.chunk_bytes = session.chunk_bytes();
  spec.tag.payload_crc = session.payload_crc();
  spec.chunk_pipeline.assign(session.chunk_pipeline().begin(), session.chunk_pipeline().end());
  const bool sane = sizes_are_sane(spec) &&
                    chunk_count(spec, tensors) == spec.chunk_pipeline.size() &&
                    std::all_of(spec.chunk_pipeline.begin(), spec.chunk_pipeline.end(),
                                [&](uint8_t index) { return index < session.pipelines_size(); });
  if (!sane) return Error{ErrorCode::kInternal, "the box's SESSION does not fit the tensor list"};
  return spec;
}

}  // namespace pbox::worker
