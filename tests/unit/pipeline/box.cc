#include "tests/unit/pipeline/box.h"

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>

#include "nic/wire/chunk_layout.h"

namespace pbox::test {

using pipeline::Counter;

nic::Endpoint address_of(uint32_t job, uint32_t rank) {
  return *nic::parse_endpoint("10.0." + std::to_string(job) + "." + std::to_string(rank + 1), 7000);
}

pipeline::ShardSpec spec_of(const JobOptions& options) {
  pipeline::ShardSpec spec;
  spec.name = options.name.empty() ? "job " + std::to_string(options.job) : options.name;
  spec.epoch = 10 + options.job;
  spec.generation = static_cast<uint16_t>(20 + options.job);
  spec.fragment_bytes = options.fragment_bytes;
  spec.mode = options.mode;
  spec.reduction = options.reduction;
  spec.optimizer = options.optimizer;
  spec.sync = options.sync;
  spec.relaxed_model = options.relaxed_model;
  spec.delivery = options.delivery;
  spec.numerics = options.numerics;
  spec.guard = options.guard;
  spec.replicated = options.replicated;
  spec.relayed = options.relayed;
  spec.uplink_lanes = options.uplink_lanes;
  spec.gated = options.gated;
  spec.partial = options.partial;
  spec.weighted = options.weighted;
  spec.is_collective = options.is_collective;
  spec.job_chunk_count = options.chunks + 1;
  for (uint32_t id = 0; id < options.chunks; ++id) {
    spec.chunks.push_back({.chunk = id,
                           .elements = options.chunk_elements,
                           .dtype = options.dtype,
                           .row_bytes = options.row_bytes,
                           .row_skipped_bytes = options.row_skipped_bytes,
                           .uplink_lane = static_cast<uint8_t>(id % options.uplink_lanes)});
    if (!options.models.empty()) spec.chunks.back().sync = options.models[id];
  }
  for (uint32_t rank = 0; rank < options.workers; ++rank) {
    spec.sessions.push_back({spi_of(options.job, rank), options.credit_bytes});
    spec.sessions.back().takes_zeros = options.takes_zeros;
  }
  return spec;
}

FlightMemory::FlightMemory(uint64_t capacity)
    : memory_(pipeline::flight_image_bytes(capacity) / sizeof(pipeline::FlightRecord)) {
  pipeline::make_flight_head({.pipeline_index = kPipeline, .capacity = capacity}, span().data());
}

std::vector<pipeline::FlightRecord> FlightMemory::records() {
  auto images = pipeline::read_flight_images(span());
  REQUIRE(images);
  REQUIRE(images->size() == 1);
  return std::move(images->front().records);
}

pipeline::JobShard& Box::admit(const JobOptions& options) {
  auto shard = pipeline::JobShard::create(spec_of(options));
  REQUIRE(shard.ok());
  shards_.push_back(std::move(*shard));
  engine.execute({.kind = pipeline::CommandKind::kInstall, .shard = shards_.back().get()});
  return *shards_.back();
}

void Box::remove(pipeline::JobShard& shard) {
  engine.execute({.kind = pipeline::CommandKind::kRemove, .shard = &shard});
  // Frees the memory, as the daemon does, so that the sanitizer sees a late access.
  std::erase_if(shards_, [&](const auto& owned) { return owned.get() == &shard; });
}

Packet Box::push(const JobOptions& options, uint32_t rank, uint32_t fragment, float value,
                 uint32_t round, uint32_t chunk) {
  const uint32_t bytes = options.chunk_elements * wire::dtype_bytes(options.dtype);
  const uint32_t length = wire::fragment_length(bytes, options.fragment_bytes, fragment);
  Packet packet = pull(options, rank, round, 0, chunk);
  packet.header.set_type(wire::PacketType::kPush);
  packet.header.fragment = static_cast<uint16_t>(fragment);
  packet.header.dtype_scale = static_cast<uint16_t>(options.dtype);
  packet.header.payload_bytes = static_cast<uint16_t>(length);
  const std::vector<float> values(length / wire::dtype_bytes(options.dtype), value);
  packet.payload.resize(length);
  reduce::narrow(options.dtype, packet.payload.data(), values.data(), values.size());
  return packet;
}

Packet Box::pull(const JobOptions& options, uint32_t rank, uint32_t round, uint64_t held_mask,
                 uint32_t chunk) {
  Packet packet;
  packet.header.set_type(wire::PacketType::kPull);
  packet.header.spi = spi_of(options.job, rank);
  packet.header.packet_number = next_packet_number_++;
  packet.header.epoch = 10 + options.job;
  packet.header.generation = static_cast<uint16_t>(20 + options.job);
  packet.header.chunk = chunk;
  packet.header.round = round;
  packet.header.timestamp_us = 4711;
  packet.header.payload_bytes = sizeof(held_mask);
  packet.payload.resize(sizeof(held_mask));
  std::memcpy(packet.payload.data(), &held_mask, sizeof(held_mask));
  packet.from = address_of(options.job, rank);
  return packet;
}

Packet Box::zeros(const JobOptions& options, uint32_t rank, uint64_t mask, uint32_t round,
                  uint32_t chunk) {
  Packet packet = pull(options, rank, round, mask, chunk);
  packet.header.set_type(wire::PacketType::kZeros);
  packet.header.fragment = static_cast<uint16_t>(std::countr_zero(mask));
  packet.header.dtype_scale = static_cast<uint16_t>(options.dtype);
  return packet;
}

void Box::push_chunk(const JobOptions& options, uint32_t rank, float value, uint32_t round,
                     uint32_t chunk) {
  const uint32_t bytes = options.chunk_elements * wire::dtype_bytes(options.dtype);
  const uint32_t fragments = wire::fragment_count(bytes, options.fragment_bytes);
  for (uint32_t fragment = 0; fragment < fragments; ++fragment) {
    deliver(push(options, rank, fragment, value, round, chunk));
  }
}

std::vector<Sent> Box::run_round(const JobOptions& options, uint32_t round, uint32_t chunk) {
  for (uint32_t rank = 0; rank < options.workers; ++rank) {
    push_chunk(options, rank, 1.0f, round, chunk);
  }
  return take_all();
}

std::vector<std::byte> wire_bytes(const Packet& packet) {
  const auto tag = wire::make_tag({.payload_crc = true}, packet.header, packet.payload.data());
  std::vector<std::byte> bytes(sizeof(wire::Header) + packet.payload.size() + tag.size());
  std::memcpy(bytes.data(), &packet.header, sizeof(wire::Header));
  std::copy(packet.payload.begin(), packet.payload.end(), bytes.begin() + sizeof(wire::Header));
  std::copy(tag.begin(), tag.end(), bytes.end() - static_cast<ptrdiff_t>(tag.size()));
  return bytes;
}

void Box::deliver(const Packet& packet) {
  const auto bytes = wire_bytes(packet);
  const nic::RxPacket received{bytes.data(), static_cast<uint32_t>(bytes.size()), packet.from};
  engine.on_burst({&received, 1}, now_ns);
}

void Box::deliver_raw(const std::vector<std::byte>& bytes) {
  const nic::RxPacket received{bytes.data(), static_cast<uint32_t>(bytes.size()), address_of(9, 9)};
  engine.on_burst({&received, 1}, now_ns);
}

std::vector<Sent> Box::take_burst() {
  std::vector<Sent> sent;
  const auto packets = engine.to_send();
  for (const nic::TxPacket& packet : packets) {
    const wire::Tag tag = wire::make_tag({.payload_crc = true}, packet.header, packet.payload);
    REQUIRE((packet.tag == tag));
    sent.push_back({*packet.to, packet.header, {}});
    sent.back().payload.assign(packet.payload, packet.payload + packet.header.payload_bytes);
  }
  engine.sent(packets.size());
  return sent;
}

std::vector<Sent> Box::take_all() {
  std::vector<Sent> sent;
  for (auto burst = take_burst(); !burst.empty(); burst = take_burst()) {
    sent.insert(sent.end(), burst.begin(), burst.end());
  }
  return sent;
}

CounterChange::CounterChange(const pipeline::Engine& engine) : engine_(engine) {
  for (const auto& counter : engine.counters().values) before_.push_back(counter.get());
}

std::vector<Counter> CounterChange::moved() const {
  std::vector<Counter> moved;
  for (size_t index = static_cast<size_t>(Counter::kAggregated); index < before_.size(); ++index) {
    if (engine_.counters().values[index].get() != before_[index]) {
      moved.push_back(static_cast<Counter>(index));
    }
  }
  return moved;
}

}  // namespace pbox::test
