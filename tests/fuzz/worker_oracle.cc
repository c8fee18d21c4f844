#include "tests/fuzz/worker_oracle.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "nic/wire/chunk_layout.h"

namespace pbox::fuzz {

uint32_t WorkerOracle::Chunk::fragments() const {
  return wire::fragment_count(bytes, kFragmentBytes);
}

WorkerOracle::WorkerOracle(Input& input) {
  tensors_.resize(1 + input.below(3));
  for (uint32_t index = 0; index < tensors_.size(); ++index) {
    Tensor& tensor = tensors_[index];
    const uint8_t shape = input.byte();
    tensor.spec = {.name = std::to_string(index),
                   .elements = 1u + shape * 11u,
                   .dtype = static_cast<wire::Dtype>(shape % wire::kDtypeCount)};
    const auto bytes =
        static_cast<uint32_t>(tensor.spec.elements * wire::dtype_bytes(tensor.spec.dtype));
    tensor.first_chunk = static_cast<uint32_t>(chunks_.size());
    tensor.input.resize(bytes);
    tensor.output.resize(bytes);
    tensor.expected.resize(bytes);
    for (uint32_t offset = 0; offset < bytes; offset += kChunkBytes) {
      chunks_.push_back(
          {.tensor = index, .offset = offset, .bytes = std::min(kChunkBytes, bytes - offset)});
    }
  }
}

worker::SessionSpec WorkerOracle::session(uint32_t credit_bytes) const {
  worker::SessionSpec session;
  session.epoch = 5;
  session.generation = 6;
  session.fragment_bytes = kFragmentBytes;
  session.chunk_bytes = kChunkBytes;
  session.tag = kTag;
  for (uint32_t pipeline = 0; pipeline < kPipelines; ++pipeline) {
    session.pipelines.push_back({spi(pipeline), credit_bytes, {}});
  }
  for (uint32_t chunk = 0; chunk < chunks_.size(); ++chunk) {
    session.chunk_pipeline.push_back(static_cast<uint8_t>(pipeline_of(chunk)));
  }
  return session;
}

std::vector<worker::TensorSpec> WorkerOracle::specs() const {
  std::vector<worker::TensorSpec> specs;
  for (const Tensor& tensor : tensors_) specs.push_back(tensor.spec);
  return specs;
}

void WorkerOracle::start(uint32_t index, uint8_t value) {
  Tensor& tensor = tensors_[index];
  PBOX_CHECK(!tensor.started);
  tensor.started = true;
  for (size_t at = 0; at < tensor.input.size(); ++at) {
    tensor.input[at] = std::byte(value + at % 251);
  }
  for (Chunk& chunk : chunks_) {
    if (chunk.tensor != index) continue;
    chunk.held = 0;
    chunk.pushed = false;
    chunk.is_done = false;
  }
}

void WorkerOracle::check_sent(const nic::TxPacket& packet, uint32_t pipeline) {
  const wire::Header& header = packet.header;
  PBOX_CHECK(header.spi == spi(pipeline) && header.epoch == 5 && header.generation == 6);
  PBOX_CHECK(header.chunk < chunks_.size() && pipeline_of(header.chunk) == pipeline);
  PBOX_CHECK(packet.tag == wire::make_tag(kTag, header, packet.payload));
  Chunk& chunk = chunks_[header.chunk];
  const Tensor& tensor = tensors_[chunk.tensor];
  PBOX_CHECK(tensor.started && !chunk.is_done && header.round == chunk.round);
  chunk.pushed = true;
  if (header.type() == wire::PacketType::kPull) {
    PBOX_CHECK(header.payload_bytes == sizeof(wire::PullPayload));
    wire::PullPayload pull;
    std::memcpy(&pull, packet.payload, sizeof(pull));
    PBOX_CHECK((pull.held_mask & ~chunk.held) == 0);
    return;
  }
  PBOX_CHECK(header.type() == wire::PacketType::kPush);
  PBOX_CHECK(header.fragment < chunk.fragments());
  PBOX_CHECK(header.dtype_scale == static_cast<uint16_t>(tensor.spec.dtype));
  PBOX_CHECK(header.payload_bytes ==
             wire::fragment_length(chunk.bytes, kFragmentBytes, header.fragment));
  PBOX_CHECK(std::memcmp(packet.payload,
                         tensor.input.data() + chunk.offset + header.fragment * kFragmentBytes,
                         header.payload_bytes) == 0);
}

bool WorkerOracle::awaits(uint32_t id, uint32_t round, uint32_t fragment) const {
  const Chunk& chunk = chunks_[id];
  return chunk.pushed && !chunk.is_done && chunk.round == round && fragment < chunk.fragments() &&
         (chunk.held >> fragment & 1) == 0;
}

void WorkerOracle::accepted(const wire::Parsed& result) {
  const wire::Header& header = result.header;
  PBOX_CHECK(header.type() == wire::PacketType::kResult && header.chunk < chunks_.size());
  PBOX_CHECK(header.spi == (spi(pipeline_of(header.chunk)) | wire::kSpiToWorker));
  PBOX_CHECK(header.epoch == 5 && header.generation == 6);
  Chunk& chunk = chunks_[header.chunk];
  Tensor& tensor = tensors_[chunk.tensor];
  PBOX_CHECK(tensor.started && !chunk.is_done && header.round == chunk.round);
  PBOX_CHECK(header.fragment < chunk.fragments() && (chunk.held >> header.fragment & 1) == 0);
  PBOX_CHECK(header.payload_bytes ==
             wire::fragment_length(chunk.bytes, kFragmentBytes, header.fragment));
  std::memcpy(tensor.expected.data() + chunk.offset + header.fragment * kFragmentBytes,
              result.payload, header.payload_bytes);
  chunk.held |= uint64_t{1} << header.fragment;
  if (chunk.held != wire::full_mask(chunk.fragments())) return;
  chunk.is_done = true;
  ++chunk.round;
}

void WorkerOracle::completed(uint32_t index) {
  Tensor& tensor = tensors_[index];
  PBOX_CHECK(tensor.started);
  for (const Chunk& chunk : chunks_) PBOX_CHECK(chunk.tensor != index || chunk.is_done);
  PBOX_CHECK(tensor.output == tensor.expected);
  tensor.started = false;
}

void WorkerOracle::check_outputs() const {
  for (const Tensor& tensor : tensors_) PBOX_CHECK(tensor.output == tensor.expected);
}

}  // namespace pbox::fuzz
