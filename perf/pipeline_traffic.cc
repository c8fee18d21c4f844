#include "perf/pipeline_traffic.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "nic/crypto/session_keys.h"
#include "nic/wire/chunk_layout.h"

namespace pbox::perf {
namespace {

constexpr uint32_t kWindowChunks = 16;   // chunks by which a worker runs ahead of the slowest
constexpr size_t kAlignmentBytes = 192;  // the most that a packet takes besides its payload

seal::SessionSeal make_seal(crypto::End end, seal::Suite suite, uint32_t spi,
                            const std::shared_ptr<crypto::SecretPages>& pages) {
  // Stands in for the secret that TLS exports to both ends of a control connection.
  const auto exporter = [](std::span<const std::byte>, crypto::TrafficSecret& secret) {
    secret.bytes.fill(std::byte{1});
    return true;
  };
  auto made = crypto::make_session_keys(end, exporter, pages)
                  ->make({.suite = suite}, {.pipeline = 0, .spi = spi});
  if (!made) throw std::runtime_error(made.error().message);
  return std::move(*made);
}

}  // namespace

Traffic::Traffic(uint32_t workers, uint32_t fragment_bytes, seal::Suite suite)
    : workers_(workers), fragment_bytes_(fragment_bytes), suite_(suite) {}

void Traffic::make_seals(pipeline::JobShard& shard) {
  for (uint32_t rank = 0; rank < workers_; ++rank) {
    if (suite_ == seal::Suite::kNone) {
      seals_.emplace_back();
      continue;
    }
    pipeline::Session& session = shard.sessions()[rank];
    seals_.push_back(make_seal(crypto::End::kWorker, suite_, session.spi, pages_));
    session.seal = make_seal(crypto::End::kBox, suite_, session.spi, pages_);
  }
}

void Traffic::build(pipeline::JobShard& shard) {
  make_seals(shard);
  const auto& chunks = shard.chunks();
  size_t bytes = 0;
  for (const auto& chunk : chunks) {
    bytes += workers_ * (size_t{chunk.wire_bytes} + chunk.fragment_count * kAlignmentBytes);
    gradient_bytes_ += double(workers_) * chunk.wire_bytes;
  }
  auto arena = NumaArena::create(bytes, kAnyNumaNode);
  if (!arena) throw std::runtime_error(arena.error().message);
  memory_ = std::move(*arena);
  // Workers send chunks in the same order and stay within a window of each other, so their chunks
  // interleave.
  for (size_t first = 0; first < chunks.size(); first += kWindowChunks) {
    const size_t last = std::min(chunks.size(), first + kWindowChunks);
    for (uint32_t rank = 0; rank < workers_; ++rank) {
      for (size_t index = first; index < last; ++index) {
        for (uint32_t fragment = 0; fragment < chunks[index].fragment_count; ++fragment) {
          build_packet(shard, chunks[index], rank, fragment);
        }
      }
    }
  }
}

void Traffic::build_packet(const pipeline::JobShard& shard, const pipeline::Chunk& chunk,
                           uint32_t rank, uint32_t fragment) {
  const uint32_t payload = wire::fragment_length(chunk.wire_bytes, fragment_bytes_, fragment);
  Packet packet;
  packet.bytes = limits::kPacketOverheadBytes + payload;
  packet.data = memory_.take(packet.bytes);
  packet.chunk = chunk.id;
  packet.rank = rank;
  packet.offset_elements = fragment * fragment_bytes_ / 4;
  packet.elements = payload / 4;
  wire::Header header;
  header.set_type(wire::PacketType::kPush);
  header.payload_bytes = static_cast<uint16_t>(payload);
  header.spi = shard.sessions()[rank].spi;
  header.epoch = shard.epoch;
  header.generation = shard.generation;
  header.chunk = chunk.id;
  header.fragment = static_cast<uint16_t>(fragment);
  std::memcpy(packet.data, &header, sizeof(header));
  fill(packet);
  packets_.push_back(packet);
  seal(packet);
}

void Traffic::fill(const Packet& packet) const {
  auto* values = reinterpret_cast<float*>(packet.data + limits::kHeaderBytes);
  for (uint32_t i = 0; i < packet.elements; ++i) values[i] = value_of(packet.chunk, i);
}

void Traffic::seal(const Packet& packet) {
  std::byte* payload = packet.data + limits::kHeaderBytes;
  nic::TxPacket sealed;
  std::memcpy(&sealed.header, packet.data, sizeof(sealed.header));
  sealed.header.round = round_;
  sealed.payload = payload;
  seals_[packet.rank].seal({}, sealed, payload);
  std::memcpy(packet.data, &sealed.header, sizeof(sealed.header));
  std::memcpy(payload + sealed.header.payload_bytes, sealed.tag.data(), sealed.tag.size());
}

void Traffic::next_round() {
  ++round_;
  for (const Packet& packet : packets_) {
    if (suite_ == seal::Suite::kGcm256) fill(packet);  // it was encrypted in place
    seal(packet);
  }
}

}  // namespace pbox::perf
