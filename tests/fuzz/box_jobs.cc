#include "tests/fuzz/box_jobs.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "nic/wire/chunk_layout.h"
#include "nic/wire/push_weight.h"
#include "pipeline/reduce/reference.h"
#include "tests/fuzz/box_slots.h"

namespace pbox::fuzz {
namespace {

wire::Header header_of(const JobShape& shape, const Place& place, uint64_t number) {
  wire::Header header;
  header.spi = shape.spi(place.rank);
  header.packet_number = number;
  header.epoch = shape.epoch();
  header.chunk = place.chunk;
  header.round = place.round;
  header.fragment = static_cast<uint16_t>(place.fragment);
  header.generation = shape.generation();
  return header;
}

std::vector<std::byte> join(const wire::Header& header, const std::vector<std::byte>& payload) {
  std::vector<std::byte> packet(sizeof(header) + payload.size());
  std::memcpy(packet.data(), &header, sizeof(header));
  std::copy(payload.begin(), payload.end(), packet.begin() + sizeof(header));
  return packet;
}

// Returns any weight code, including the one for no weight.
uint16_t drawn_weight(const Place& place, uint64_t drawn) {
  return static_cast<uint16_t>((drawn * 37 + place.rank * 5 + place.fragment) % wire::kWeightCodes);
}

constexpr uint32_t kGraceMs = 20;

wire::SyncSpec read_sync(Input& input, uint32_t workers) {
  using wire::SyncModel;
  const uint8_t choice = input.byte();
  wire::SyncSpec sync;
  sync.model = static_cast<SyncModel>(1 + (choice & 15) % 6);
  const bool is_ssp = sync.model == SyncModel::kSsp;
  const bool by_chance = sync.model == SyncModel::kPssp || sync.model == SyncModel::kDpssp;
  if (sync.model == SyncModel::kDrop) {
    sync.quorum = 1 + (choice >> 4) % workers;
    sync.counts_late = (choice & 64) != 0;
    if ((choice & 128) != 0) sync.grace_ms = kGraceMs;
  }
  if (is_ssp || by_chance || sync.model == SyncModel::kEssp) sync.staleness = choice >> 4 & 3;
  if (by_chance) sync.probability = 0.5f;
  const bool cached = sync.model == SyncModel::kEssp || (is_ssp && (choice & 64) != 0);
  const bool is_answered = cached && (choice & 128) != 0;
  if (cached) sync.reads = is_answered ? wire::Reads::kAnswered : wire::Reads::kCached;
  if ((is_ssp || by_chance) && !cached && (choice & 128) != 0) sync.release = wire::Release::kLazy;
  return sync;
}

// The value of `size` that makes the job one of collectives.
constexpr uint8_t kCollective = 3;

// Reads the shape of a job of collectives. The box refuses such jobs if they leave ranks out or
// have a mode that is not the default, so none of these is drawn.
JobShape read_collective(Input& input, uint32_t job, uint32_t workers) {
  JobShape shape;
  shape.job = job;
  shape.is_collective = true;
  shape.workers = workers;
  shape.dtype = wire::Dtype::kU8;
  shape.seed = input.byte();
  const uint8_t size = input.byte();
  shape.elements = (1u + size % 32) * 64;
  shape.chunks = 1u + (size >> 5) % 3;
  if ((size & 128) == 0) return shape;
  shape.first_round = 5;
  if (size % 5 > 0) shape.copy_rank = size % workers;
  return shape;
}

}  // namespace

uint32_t JobShape::fragments() const {
  return wire::fragment_count(chunk_bytes(), kFragmentBytes);
}

JobShape read_shape(Input& input, uint32_t job) {
  JobShape shape;
  shape.job = job;
  const uint8_t kind = input.byte();
  shape.workers = 1u + kind % 4;
  shape.dtype = static_cast<wire::Dtype>(kind / 4 % wire::kDtypeCount);
  shape.reduction = (kind & 64) != 0 ? pipeline::Reduction::kMean : pipeline::Reduction::kSum;
  if ((kind & 128) != 0) {
    shape.mode = pipeline::Mode::kOptimize;
    shape.optimizer = static_cast<optimizer::OptimizerKind>(1 + kind % 5);
  }
  if ((kind & 32) != 0) shape.delivery = wire::Delivery::kPull;
  const uint8_t size = input.byte();
  if (size == kCollective) return read_collective(input, job, shape.workers);
  shape.elements = 1u + size * 3u % 500;
  shape.chunks = 1u + size % 3;
  shape.partial = (size & 64) != 0;
  shape.takes_zeros = (size & 32) != 0;
  if ((size & 128) != 0 && shape.mode == pipeline::Mode::kAggregate) {
    shape.first_round = 5;
    if (size % 5 > 0) shape.copy_rank = size % shape.workers;
  }
  if ((size & 128) != 0 && shape.mode == pipeline::Mode::kOptimize) {
    shape.sync = read_sync(input, shape.workers);
  }
  shape.weighted = (size & 16) != 0 && shape.reduction == pipeline::Reduction::kMean &&
                   !shape.applies_on_arrival();
  return shape;
}

uint32_t JobShape::present() const {
  return workers -
         static_cast<uint32_t>(std::count(absent.begin(), absent.begin() + workers, true));
}

pipeline::ShardSpec spec_of(const JobShape& shape, uint32_t credit_bytes) {
  pipeline::ShardSpec spec;
  spec.epoch = shape.epoch();
  spec.generation = shape.generation();
  spec.fragment_bytes = kFragmentBytes;
  spec.mode = shape.mode;
  spec.is_collective = shape.is_collective;
  spec.reduction = shape.reduction;
  spec.optimizer.kind = shape.optimizer;
  spec.sync = shape.sync;
  spec.partial = shape.partial;
  spec.weighted = shape.weighted;
  spec.delivery = shape.delivery;
  spec.job_chunk_count = shape.chunks + 1;
  for (uint32_t id = 0; id < shape.chunks; ++id) {
    spec.chunks.push_back({.chunk = id,
                           .elements = shape.elements,
                           .dtype = shape.dtype,
                           .priority = static_cast<int32_t>(id % 2),
                           .first_round = shape.first_round,
                           .copy_rank = id == 0 ? shape.copy_rank : pipeline::kNoRank});
  }
  for (uint32_t rank = 0; rank < shape.workers; ++rank) {
    spec.sessions.push_back({shape.spi(rank), credit_bytes});
    spec.sessions.back().takes_zeros = shape.takes_zeros;
  }
  return spec;
}

std::vector<std::byte> push_packet(const JobShape& shape, const Place& place, uint64_t number,
                                   uint8_t value) {
  wire::Header header = header_of(shape, place, number);
  header.set_type(wire::PacketType::kPush);
  if (shape.is_collective) {
    const auto payload = fill_slot_push(shape, place, value, header);
    return join(header, payload);
  }
  header.dtype_scale = static_cast<uint16_t>(shape.dtype);
  if (shape.weighted) wire::set_weight_code(drawn_weight(place, value), header);
  const uint32_t bytes =
      place.fragment < shape.fragments()
          ? wire::fragment_length(shape.chunk_bytes(), kFragmentBytes, place.fragment)
          : kFragmentBytes;
  header.payload_bytes = static_cast<uint16_t>(bytes);
  std::vector<float> values(bytes / wire::dtype_bytes(shape.dtype));
  for (size_t index = 0; index < values.size(); ++index) {
    values[index] = (static_cast<float>(value) - 100) / 8 + static_cast<float>(index % 7);
  }
  std::vector<std::byte> payload(bytes);
  reduce::reference::narrow(shape.dtype, payload.data(), values.data(), values.size());
  return join(header, payload);
}

std::vector<std::byte> pull_packet(const JobShape& shape, const Place& place, uint64_t number,
                                   uint64_t held_mask) {
  wire::Header header = header_of(shape, place, number);
  header.set_type(wire::PacketType::kPull);
  header.payload_bytes = sizeof(held_mask);
  std::vector<std::byte> payload(sizeof(held_mask));
  std::memcpy(payload.data(), &held_mask, sizeof(held_mask));
  return join(header, payload);
}

std::vector<std::byte> zeros_packet(const JobShape& shape, const Place& place, uint64_t number,
                                    uint64_t mask) {
  wire::Header header = header_of(shape, place, number);
  header.set_type(wire::PacketType::kZeros);
  header.fragment = static_cast<uint16_t>(std::countr_zero(mask));
  header.dtype_scale = static_cast<uint16_t>(shape.dtype);
  if (shape.weighted) wire::set_weight_code(drawn_weight(place, mask), header);
  header.payload_bytes = sizeof(mask);
  std::vector<std::byte> payload(sizeof(mask));
  std::memcpy(payload.data(), &mask, sizeof(mask));
  return join(header, payload);
}

void append_tag(std::vector<std::byte>& packet) {
  wire::Header header;
  std::memcpy(&header, packet.data(), sizeof(header));
  // The bytes after the header may be fewer or more than the length field says. Then the tag is
  // zeros.
  const bool whole = packet.size() == sizeof(header) + header.payload_bytes;
  const wire::Tag tag =
      whole ? wire::make_tag({.payload_crc = true}, header, packet.data() + sizeof(header))
            : wire::Tag{};
  packet.insert(packet.end(), tag.begin(), tag.end());
}

}  // namespace pbox::fuzz
