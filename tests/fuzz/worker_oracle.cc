#include "tests/fuzz/worker_oracle.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "nic/wire/chunk_layout.h"
#include "nic/wire/half.h"
#include "nic/wire/zeros.h"

namespace pbox::fuzz {

namespace {

using wire::SyncModel;

constexpr std::array<wire::SyncSpec, 8> kSyncs = {{
    {},
    {.model = SyncModel::kAsp},
    {.model = SyncModel::kSsp, .staleness = 2},
    {.model = SyncModel::kEssp, .staleness = 1},
    {.model = SyncModel::kEssp, .staleness = 3},
    {.model = SyncModel::kSsp, .staleness = 2, .reads = wire::Reads::kCached},
    {.model = SyncModel::kSsp, .staleness = 0, .reads = wire::Reads::kCached},
    {.model = SyncModel::kDrop, .quorum = 1},
}};

float number(wire::Dtype dtype, const std::byte* bytes) {
  if (dtype == wire::Dtype::kF32) {
    float value;
    std::memcpy(&value, bytes, sizeof(value));
    return value;
  }
  uint16_t half;
  std::memcpy(&half, bytes, sizeof(half));
  return dtype == wire::Dtype::kF16 ? wire::widen_f16(half) : wire::widen_bf16(half);
}

void write(wire::Dtype dtype, float value, std::byte* bytes) {
  if (dtype == wire::Dtype::kF32) {
    std::memcpy(bytes, &value, sizeof(value));
    return;
  }
  const uint16_t half =
      dtype == wire::Dtype::kF16 ? wire::narrow_f16(value) : wire::narrow_bf16(value);
  std::memcpy(bytes, &half, sizeof(half));
}

// Returns whether computed numbers are equal. Any two NaNs are, because it is unspecified which NaN
// an operation produces.
bool equal(wire::Dtype dtype, const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  if (dtype == wire::Dtype::kU8) return a == b;
  const uint32_t bytes = wire::dtype_bytes(dtype);
  for (size_t at = 0; at < a.size(); at += bytes) {
    const bool both_nan = std::isnan(number(dtype, &a[at])) && std::isnan(number(dtype, &b[at]));
    if (!both_nan && std::memcmp(&a[at], &b[at], bytes) != 0) return false;
  }
  return a.size() == b.size();
}

}  // namespace

uint32_t WorkerOracle::Chunk::fragments() const {
  return bytes == 0 ? 1 : wire::fragment_count(bytes, kFragmentBytes);
}

WorkerOracle::WorkerOracle(Input& input) {
  const uint8_t kinds = input.byte();
  sync_ = kSyncs[kinds >> 4 & 7];
  has_shadow_ = (kinds & 1) != 0 && sync_.model == wire::SyncModel::kBsp;
  if ((kinds & 128) != 0 && sync_.model == wire::SyncModel::kBsp) {
    delivery_ = wire::Delivery::kPull;
  }
  const uint8_t count = input.byte();
  is_collective_ = (count & 0xc0) == 0x40 && sync_.model == wire::SyncModel::kBsp &&
                   delivery_ == wire::Delivery::kBroadcast;
  takes_zeros_ = (count & 0x20) != 0;
  tensors_.resize(1 + count % 3);
  for (uint32_t index = 0; index < tensors_.size(); ++index) {
    Tensor& tensor = tensors_[index];
    const uint8_t shape = input.byte();
    tensor.spec = {.name = std::to_string(index),
                   .elements = 1u + shape * 11u,
                   .dtype = static_cast<wire::Dtype>(shape % wire::kDtypeCount)};
    if (is_collective_) {
      tensor.spec.elements = kChunkBytes;
      tensor.spec.dtype = wire::Dtype::kU8;
    }
    const auto bytes =
        static_cast<uint32_t>(tensor.spec.elements * wire::dtype_bytes(tensor.spec.dtype));
    tensor.first_chunk = static_cast<uint32_t>(chunks_.size());
    tensor.in_place = (kinds >> index & 2) != 0;
    tensor.input.resize(bytes);
    tensor.output.resize(bytes);
    tensor.expected.resize(bytes);
    for (uint32_t offset = 0; offset < bytes; offset += kChunkBytes) {
      chunks_.push_back(
          {.tensor = index, .offset = offset, .bytes = std::min(kChunkBytes, bytes - offset)});
    }
  }
}

worker::SessionSpec WorkerOracle::session(uint32_t credit_bytes) {
  credit_bytes_ = credit_bytes;
  worker::SessionSpec session;
  session.epoch = epoch_;
  session.generation = generation_;
  session.fragment_bytes = kFragmentBytes;
  session.chunk_bytes = kChunkBytes;
  session.tag = kTag;
  session.sync = sync_;
  session.takes_zeros = takes_zeros_;
  session.learning_rate = kLearningRate;
  session.gradient_scale = kGradientScale;
  session.delivery = delivery_;
  for (uint32_t pipeline = 0; pipeline < kPipelines; ++pipeline) {
    session.pipelines.push_back({spi(pipeline), credit_bytes, {}});
  }
  for (uint32_t chunk = 0; chunk < chunks_.size(); ++chunk) {
    session.chunk_pipeline.push_back(static_cast<uint8_t>(pipeline_of(chunk)));
  }
  return session;
}

NumaArena WorkerOracle::shadow() {
  const uint64_t bytes = has_shadow_ ? worker::shadow_bytes(session(0), specs(), 1)
                                     : worker::cache_bytes(session(0), specs());
  if (bytes == 0) return {};
  return std::move(*NumaArena::create(bytes, kAnyNumaNode));
}

worker::SessionSpec WorkerOracle::resume(Input& input) {
  ++epoch_;
  worker::SessionSpec next = session(credit_bytes_);
  for (uint32_t id = 0; id < chunks_.size(); ++id) {
    Chunk& chunk = chunks_[id];
    const uint8_t choice = input.byte();
    chunk.held = 0;
    chunk.made = chunk.pushed = chunk.giving = chunk.announced = false;
    int round = 0;  // the box's round, relative to this worker's
    if ((choice & 3) == 1) round = tensors_[chunk.tensor].started && !chunk.is_done ? 1 : 0;
    if ((choice & 3) == 2) round = -1;
    if ((choice & 3) == 3 && chunk.has_copy) {
      round = -1;
      chunk.giving = true;
      next.chunks_to_restore.push_back(id);
    }
    if (slot(chunk) != nullptr) chunk.bytes = slot(chunk)->bytes;
    next.open_rounds.push_back(chunk.round + static_cast<uint32_t>(round));
  }
  return next;
}

bool WorkerOracle::is_giving() const {
  return std::any_of(chunks_.begin(), chunks_.end(),
                     [](const Chunk& chunk) { return chunk.giving; });
}

std::vector<worker::TensorSpec> WorkerOracle::specs() const {
  std::vector<worker::TensorSpec> specs;
  for (const Tensor& tensor : tensors_) specs.push_back(tensor.spec);
  return specs;
}

void WorkerOracle::start(uint32_t index, uint8_t value, const StartedSlot& started) {
  Tensor& tensor = tensors_[index];
  PBOX_CHECK(!tensor.started);
  tensor.started = true;
  tensor.slot = started;
  for (size_t at = 0; at < tensor.input.size(); ++at) {
    tensor.input[at] = std::byte(value + at % 251);
    // Some fragments are zero, or zero except for their last byte.
    const size_t fragment = at / kFragmentBytes;
    const bool is_whole = (value & 64) == 0 || at % kFragmentBytes + 1 < kFragmentBytes;
    const bool is_zero = (value & 1) != 0 && (value >> (1 + fragment % 5) & 1) != 0;
    if (takes_zeros_ && is_zero && is_whole) tensor.input[at] = std::byte{0};
  }
  if (tensor.in_place) tensor.output = tensor.expected = tensor.input;
  for (Chunk& chunk : chunks_) {
    if (chunk.tensor != index) continue;
    if (!chunk.giving) {  // a result that is given back is still in flight
      chunk.held = 0;
      chunk.pushed = false;
      if (is_collective_) chunk.bytes = started.round->bytes;
    }
    chunk.acknowledged = 0;
    chunk.is_done = chunk.in_round = false;
  }
  ++tensor.operations;
  tensor.round.reset();
}

void WorkerOracle::made(const nic::TxPacket& packet) {
  chunks_[packet.header.chunk].made = true;
}

void WorkerOracle::check_sent(const nic::TxPacket& packet, uint32_t pipeline) {
  const wire::Header& header = packet.header;
  PBOX_CHECK(header.spi == spi(pipeline) && header.epoch == epoch_);
  PBOX_CHECK(header.generation == generation_);
  PBOX_CHECK(header.chunk < chunks_.size() && pipeline_of(header.chunk) == pipeline);
  PBOX_CHECK(packet.tag == wire::make_tag(kTag, header, packet.payload));
  Chunk& chunk = chunks_[header.chunk];
  Tensor& tensor = tensors_[chunk.tensor];
  PBOX_CHECK(chunk.giving || (tensor.started && !chunk.is_done));
  if (sync_.model == SyncModel::kDrop && !chunk.in_round) {
    // All chunks of an operation have the same round, whatever results they have had before. Rounds
    // may be skipped, but none is done twice.
    if (!tensor.round) tensor.round = header.round;
    PBOX_CHECK(header.round == *tensor.round && header.round + 1 >= tensor.operations);
    chunk.round = header.round;
    chunk.in_round = true;
  }
  PBOX_CHECK(header.round == chunk.round - (chunk.giving ? 1 : 0));
  chunk.pushed = true;
  if (header.type() == wire::PacketType::kPull) {
    PBOX_CHECK(header.payload_bytes == sizeof(wire::PullPayload) ||
               header.payload_bytes == sizeof(wire::ProvingPullPayload));
    wire::PullPayload pull;
    std::memcpy(&pull, packet.payload, sizeof(pull));
    if (!reads_cache(chunk)) PBOX_CHECK((pull.held_mask & ~chunk.held) == 0);
    for (const auto& [index, fragment] : chunk.cached) {
      if (!reads_cache(chunk) || (pull.held_mask >> index & 1) == 0) continue;
      PBOX_CHECK(fragment.clock + sync_.staleness > chunk.round);
    }
    return;
  }
  if (header.type() == wire::PacketType::kZeros) return check_zeros(packet, chunk);
  const auto type = chunk.giving ? wire::PacketType::kState : wire::PacketType::kPush;
  PBOX_CHECK(header.type() == type);
  PBOX_CHECK(header.fragment < chunk.fragments());
  if (is_collective_) return check_slot_push(packet, chunk);
  PBOX_CHECK((header.dtype_scale & 15) == static_cast<uint16_t>(tensor.spec.dtype));
  PBOX_CHECK(header.dtype_scale >> 4 == header.contributors());
  PBOX_CHECK(chunk.giving || header.contributors() == 0);
  PBOX_CHECK(header.payload_bytes ==
             wire::fragment_length(chunk.bytes, kFragmentBytes, header.fragment));
  const std::byte* whole = chunk.giving ? chunk.copy.data() : tensor.input.data() + chunk.offset;
  PBOX_CHECK(std::memcmp(packet.payload, whole + header.fragment * kFragmentBytes,
                         header.payload_bytes) == 0);
}

// Checks that only fragments that are zero are named as zero.
void WorkerOracle::check_zeros(const nic::TxPacket& packet, const Chunk& chunk) const {
  PBOX_CHECK(takes_zeros_ && !chunk.giving && !is_collective_);
  PBOX_CHECK(sync_.model == SyncModel::kBsp);
  const Tensor& tensor = tensors_[chunk.tensor];
  PBOX_CHECK(packet.header.dtype_scale == static_cast<uint16_t>(tensor.spec.dtype));
  const wire::Parsed parsed{packet.header, packet.payload};
  const uint64_t named = wire::read_zeros(parsed, wire::full_mask(chunk.fragments()));
  PBOX_CHECK(named != 0);
  PBOX_CHECK(named == wire::zero_fragments(tensor.input.data() + chunk.offset, chunk.bytes,
                                           kFragmentBytes, named));
}

void WorkerOracle::check_slot_push(const nic::TxPacket& packet, const Chunk& chunk) const {
  const wire::Header& header = packet.header;
  const worker::SlotRound& round = *slot(chunk);
  const bool is_empty = chunk.giving ? round.bytes == 0 : round.is_empty;
  wire::RoundShape shape = round.shape;
  shape.fragment_count = static_cast<uint16_t>(chunk.fragments());
  wire::Header expected = header;
  wire::write_shape(shape, is_empty, expected);
  PBOX_CHECK(std::memcmp(&expected, &header, sizeof(header)) == 0);
  if (is_empty) {
    PBOX_CHECK(header.fragment + 1u == shape.fragment_count && header.payload_bytes == 0);
    return;
  }
  PBOX_CHECK(header.payload_bytes ==
             wire::fragment_length(chunk.bytes, kFragmentBytes, header.fragment));
  const auto& whole = chunk.giving ? chunk.copy : tensors_[chunk.tensor].input;
  PBOX_CHECK(std::memcmp(packet.payload, whole.data() + header.fragment * kFragmentBytes,
                         header.payload_bytes) == 0);
}

bool WorkerOracle::awaits(uint32_t id, uint32_t round, uint32_t fragment) const {
  const Chunk& chunk = chunks_[id];
  return chunk.pushed && !chunk.giving && !chunk.is_done && chunk.round == round &&
         !reads_cache(chunk) && !gets_no_result(chunk) && fragment < chunk.fragments() &&
         (chunk.held >> fragment & 1) == 0;
}

// Returns the fragments that a ZEROS packet names, as if each had arrived in a RESULT.
std::vector<wire::Parsed> WorkerOracle::fragments_of(const wire::Parsed& zeros) const {
  static const std::vector<std::byte> zeros_of_a_fragment(kFragmentBytes);
  PBOX_CHECK(zeros.header.chunk < chunks_.size() && takes_zeros_);
  const Chunk& chunk = chunks_[zeros.header.chunk];
  const uint64_t named = wire::read_zeros(zeros, wire::full_mask(chunk.fragments()));
  std::vector<wire::Parsed> fragments;
  for (uint64_t left = named & ~chunk.held; left != 0; left &= left - 1) {
    const auto index = static_cast<uint32_t>(std::countr_zero(left));
    wire::Parsed& fragment = fragments.emplace_back(zeros);
    fragment.header.set_type(wire::PacketType::kResult);
    fragment.header.fragment = static_cast<uint16_t>(index);
    fragment.header.payload_bytes =
        static_cast<uint16_t>(wire::fragment_length(chunk.bytes, kFragmentBytes, index));
    fragment.payload = zeros_of_a_fragment.data();
  }
  PBOX_CHECK(!fragments.empty());
  return fragments;
}

void WorkerOracle::accepted(const wire::Parsed& result) {
  const wire::Header& header = result.header;
  if (header.type() == wire::PacketType::kZeros) {
    for (const wire::Parsed& fragment : fragments_of(result)) accepted(fragment);
    return;
  }
  PBOX_CHECK(header.type() == wire::PacketType::kResult && header.chunk < chunks_.size());
  PBOX_CHECK(header.spi == (spi(pipeline_of(header.chunk)) | wire::kSpiToWorker));
  PBOX_CHECK(header.epoch == epoch_ && header.generation == generation_);
  Chunk& chunk = chunks_[header.chunk];
  Tensor& tensor = tensors_[chunk.tensor];
  PBOX_CHECK(header.fragment < chunk.fragments());
  PBOX_CHECK(header.payload_bytes ==
             wire::fragment_length(chunk.bytes, kFragmentBytes, header.fragment));
  if (wire::keeps_copies(sync_)) store(chunk, result);
  if (reads_cache(chunk)) return finish_if_readable(chunk);
  PBOX_CHECK(tensor.started && !chunk.is_done && !chunk.giving && !gets_no_result(chunk));
  if (is_collective_) PBOX_CHECK(header.timestamp_us == slot(chunk)->shape.digest);
  check_version(chunk, header);
  if (sync_.model == SyncModel::kDrop && header.round != chunk.round) {
    chunk.round = header.round;
    chunk.held = 0;
  }
  chunk.clock = header.round + 1;
  chunk.in_round = true;  // `round` is now the result's, which may be newer
  PBOX_CHECK((chunk.held >> header.fragment & 1) == 0);
  chunk.staged.resize(chunk.bytes);
  std::memcpy(chunk.staged.data() + header.fragment * kFragmentBytes, result.payload,
              header.payload_bytes);
  if (tensor.slot.writes && (!tensor.overwrites_input() || !has_shadow_)) {
    std::memcpy(tensor.expected.data() + chunk.offset + header.fragment * kFragmentBytes,
                result.payload, header.payload_bytes);
  }
  chunk.has_copy = false;
  chunk.held |= uint64_t{1} << header.fragment;
  if (chunk.held != wire::full_mask(chunk.fragments())) return;
  if (tensor.slot.writes) {
    std::memcpy(tensor.expected.data() + chunk.offset, chunk.staged.data(), chunk.bytes);
  }
  chunk.copy = chunk.staged;
  finish(chunk);
}

void WorkerOracle::finish(Chunk& chunk) {
  Tensor& tensor = tensors_[chunk.tensor];
  tensor.consumed_slot = tensor.slot.round;
  chunk.has_copy = has_shadow_;
  chunk.is_done = true;
  chunk.announced = false;
  ++chunk.round;
}

// Ends the chunk's round. If the rank has pushed the result itself, its push is the result.
void WorkerOracle::finish_without_result(Chunk& chunk) {
  Tensor& tensor = tensors_[chunk.tensor];
  PBOX_CHECK(tensor.started && !chunk.is_done);
  chunk.copy.clear();
  if (tensor.slot.round->is_own_result()) {
    chunk.copy.assign(tensor.input.begin(), tensor.input.begin() + chunk.bytes);
    if (tensor.slot.writes) {
      std::copy(chunk.copy.begin(), chunk.copy.end(), tensor.expected.begin());
    }
  }
  finish(chunk);
}

// Checks that the result may be an answer to the push of the chunk's round.
void WorkerOracle::check_version(const Chunk& chunk, const wire::Header& result) const {
  if (sync_.model == SyncModel::kDrop) {
    PBOX_CHECK(result.round >= chunk.round);
  } else if (chunk.round == 0 || sync_.model == SyncModel::kBsp) {
    PBOX_CHECK(result.round == chunk.round);
  } else {
    PBOX_CHECK(result.applied() == chunk.round + 1 && result.round <= chunk.round);
  }
}

void WorkerOracle::store(Chunk& chunk, const wire::Parsed& result) {
  const wire::Header& header = result.header;
  Fragment& here = chunk.cached[header.fragment];
  const bool in_flight = tensors_[chunk.tensor].started && !chunk.is_done;
  Fragment newer{.clock = header.round + 1, .applied = header.applied()};
  if (chunk.round == 0) newer.applied = 1;  // initial weights
  PBOX_CHECK(newer.applied >= newer.clock && newer.applied <= chunk.round + (in_flight ? 1 : 0));
  PBOX_CHECK(newer.clock > here.clock ||
             (newer.clock == here.clock && newer.applied > here.applied));
  if (newer.applied == chunk.round + 1) chunk.acknowledged |= uint64_t{1} << header.fragment;
  newer.bytes.assign(result.payload, result.payload + header.payload_bytes);
  here = std::move(newer);
}

void WorkerOracle::acknowledged(const wire::Parsed& status) {
  Chunk& chunk = chunks_[status.header.chunk];
  if (!reads_cache(chunk)) return;
  PBOX_CHECK(tensors_[chunk.tensor].started && !chunk.is_done);
  PBOX_CHECK(status.header.round == chunk.round);
  wire::StatusPayload payload;
  std::memcpy(&payload, status.payload, sizeof(payload));
  chunk.acknowledged |= payload.received_mask & wire::full_mask(chunk.fragments());
  finish_if_readable(chunk);
}

void WorkerOracle::finish_if_readable(Chunk& chunk) {
  const Tensor& tensor = tensors_[chunk.tensor];
  if (!tensor.started || chunk.is_done) return;
  if (chunk.acknowledged != wire::full_mask(chunk.fragments())) return;
  for (const auto& [index, fragment] : chunk.cached) {
    if (fragment.clock + sync_.staleness < chunk.round + 1) return;
  }
  const std::byte* pushed = tensor.input.data() + chunk.offset;
  chunk.gradients[chunk.round].assign(pushed, pushed + chunk.bytes);
  for (uint32_t fragment = 0; fragment < chunk.fragments(); ++fragment) read(chunk, fragment);
  chunk.is_done = true;
  ++chunk.round;
}

// Computes the expected weights of a fragment: those of the copy, stepped by every own gradient
// since then.
void WorkerOracle::read(Chunk& chunk, uint32_t index) {
  Tensor& tensor = tensors_[chunk.tensor];
  const wire::Dtype dtype = tensor.spec.dtype;
  const Fragment& fragment = chunk.cached[index];
  for (size_t at = 0; at < fragment.bytes.size(); at += wire::dtype_bytes(dtype)) {
    const size_t in_chunk = size_t{index} * kFragmentBytes + at;
    float weight = number(dtype, &fragment.bytes[at]);
    for (uint32_t round = fragment.applied; round <= chunk.round; ++round) {
      weight -= kLearningRate * (number(dtype, &chunk.gradients[round][in_chunk]) * kGradientScale);
    }
    write(dtype, weight, &tensor.expected[chunk.offset + in_chunk]);
  }
}

// With delivery by pull, an announced chunk is requested together with the tensor's other chunks,
// and until then nothing is in flight. A result that was given back need not be requested.
void WorkerOracle::told(const wire::Parsed& parsed) {
  wire::StatusPayload status;
  if (parsed.header.payload_bytes != sizeof(status)) return;
  std::memcpy(&status, parsed.payload, sizeof(status));
  Chunk& chunk = chunks_[parsed.header.chunk];
  const bool is_finished = wire::round_distance(status.finished_round, parsed.header.round) > 0;
  if (gets_no_result(chunk) && is_finished) {
    return chunk.giving ? end_giving(chunk) : finish_without_result(chunk);
  }
  if (delivery_ == wire::Delivery::kBroadcast || chunk.announced || !is_finished) {
    return;
  }
  chunk.pushed = false;
  if (chunk.giving) chunk.held = 0;
  chunk.announced = !std::exchange(chunk.giving, false);
}

// Accepts a fragment of a result that was given back to the box. The worker must not deliver it.
void WorkerOracle::came_back(const wire::Parsed& result) {
  if (result.header.type() == wire::PacketType::kZeros) {
    for (const wire::Parsed& fragment : fragments_of(result)) came_back(fragment);
    return;
  }
  Chunk& chunk = chunks_[result.header.chunk];
  PBOX_CHECK(chunk.giving && chunk.made && result.header.round == chunk.round - 1);
  PBOX_CHECK((chunk.held >> result.header.fragment & 1) == 0);
  chunk.held |= uint64_t{1} << result.header.fragment;
  if (chunk.held == wire::full_mask(chunk.fragments())) end_giving(chunk);
}

void WorkerOracle::end_giving(Chunk& chunk) {
  chunk.held = 0;
  chunk.giving = chunk.made = chunk.pushed = false;
  if (slot(chunk) != nullptr) chunk.bytes = slot(chunk)->bytes;
}

void WorkerOracle::completed(uint32_t index) {
  Tensor& tensor = tensors_[index];
  PBOX_CHECK(tensor.started);
  for (const Chunk& chunk : chunks_) PBOX_CHECK(chunk.tensor != index || chunk.is_done);
  PBOX_CHECK(equal(tensor.spec.dtype, tensor.output, tensor.expected));
  tensor.started = false;
}

void WorkerOracle::check_outputs() const {
  for (const Tensor& tensor : tensors_) {
    PBOX_CHECK(equal(tensor.spec.dtype, tensor.output, tensor.expected));
  }
}

}  // namespace pbox::fuzz
