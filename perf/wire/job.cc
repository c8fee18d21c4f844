#include "perf/wire/job.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>

#include "nic/wire/chunk_layout.h"
#include "perf/models.h"
#include "pipeline/reduce/reduce.h"

namespace pbox::perf {
namespace {

NumaArena memory_of(size_t bytes) {
  auto arena = NumaArena::create(bytes, kAnyNumaNode);
  if (!arena) throw std::runtime_error(arena.error().message);
  return std::move(*arena);
}

}  // namespace

WireJob::WireJob(const WireShape& shape) : shape_(shape) {
  for (const ModelTensor& tensor : tensors_of(resnet50_layers())) {
    for (uint64_t left = tensor.elements * sizeof(float); left > 0;) {
      chunk_bytes_.push_back(
          static_cast<uint32_t>(std::min<uint64_t>(left, limits::kChunkBytesDefault)));
      left -= chunk_bytes_.back();
    }
  }
  pipeline::ShardSpec spec;
  spec.fragment_bytes = shape.fragment_bytes;
  spec.job_chunk_count = chunk_count();
  for (uint32_t chunk = 0; chunk < chunk_count(); ++chunk) {
    pipeline::ChunkSpec part;
    part.chunk = chunk;
    part.elements = chunk_bytes_[chunk] / sizeof(float);
    spec.chunks.push_back(part);
    fragments_of_round_ += uint64_t{shape.workers} * fragments(chunk);
  }
  for (uint32_t worker = 0; worker < shape.workers; ++worker) {
    spec.sessions.push_back({worker, limits::kCreditBytesMax});
  }
  auto shard = pipeline::JobShard::create(spec);
  if (!shard) throw std::runtime_error(shard.error().message);
  shard_ = std::move(*shard);
  sums_ = memory_of(std::accumulate(chunk_bytes_.begin(), chunk_bytes_.end(), size_t{0}));
  fragments_of_default_ = wire::fragment_count(limits::kChunkBytesDefault, shape.fragment_bytes);
  buffer_bytes_ =
      align_up(kPayloadOffset + shape.fragment_bytes + limits::kTagBytes, kCacheLineBytes);
  gradients_ = memory_of(size_t{shape.workers} * shape.window_chunks * fragments_of_default_ *
                         buffer_bytes_);
  for (uint32_t worker = 0; worker < shape.workers; ++worker) {
    for (uint32_t chunk = 0; chunk < shape.window_chunks; ++chunk) {
      const std::vector<float> values(shape.fragment_bytes / sizeof(float), value_of(chunk));
      for (uint32_t fragment = 0; fragment < fragments_of_default_; ++fragment) {
        std::memcpy(const_cast<std::byte*>(payload(worker, chunk, fragment)), values.data(),
                    shape.fragment_bytes);
      }
    }
  }
}

uint32_t WireJob::fragments(uint32_t chunk) const {
  return wire::fragment_count(chunk_bytes_[chunk], shape_.fragment_bytes);
}

void WireJob::sum_chunk(uint32_t chunk, float* accumulator) {
  const auto& kernels = reduce::kernels();
  for (uint32_t worker = 0; worker < shape_.workers; ++worker) {
    const auto function = worker == 0 ? kernels.store[0] : kernels.add[0];
    for (uint32_t fragment = 0; fragment < fragments(chunk); ++fragment) {
      const uint32_t bytes =
          wire::fragment_length(chunk_bytes_[chunk], shape_.fragment_bytes, fragment);
      function(accumulator + size_t{fragment} * shape_.fragment_bytes / sizeof(float),
               payload(worker, chunk, fragment), bytes / sizeof(float), FLT_MAX);
    }
  }
}

void WireJob::run_kernel() {
  auto* accumulator = reinterpret_cast<float*>(sums_.data());
  for (uint32_t chunk = 0; chunk < chunk_count(); ++chunk) {
    sum_chunk(chunk, accumulator);
    accumulator += chunk_bytes_[chunk] / sizeof(float);
  }
}

}  // namespace pbox::perf
