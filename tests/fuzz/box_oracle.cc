#include "tests/fuzz/box_oracle.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "nic/wire/chunk_layout.h"
#include "pipeline/optimizer/optimizer.h"
#include "pipeline/optimizer/reference.h"
#include "pipeline/reduce/reference.h"

namespace pbox::fuzz {
namespace {

// Equal bits, or both no number: which of two NaNs an addition keeps is the processor's choice.
bool same_elements(wire::Dtype dtype, const std::byte* left, const std::byte* right,
                   uint32_t bytes) {
  const uint32_t width = wire::dtype_bytes(dtype);
  for (uint32_t index = 0; index < bytes / width; ++index) {
    if (std::memcmp(left + index * width, right + index * width, width) == 0) continue;
    if (!std::isnan(reduce::reference::load_element(dtype, left, index)) ||
        !std::isnan(reduce::reference::load_element(dtype, right, index))) {
      return false;
    }
  }
  return true;
}

}  // namespace

BoxOracle::BoxOracle(const JobShape& shape) : shape_(shape), chunks_(shape.chunks) {
  optimizer_.kind = shape.optimizer;
  for (Chunk& chunk : chunks_) {
    chunk.claimed.resize(shape.workers);
    chunk.sum.resize(shape.elements);
    chunk.weights.resize(shape.elements);
    chunk.state.resize(shape.elements * optimizer::state_floats_per_element(shape.optimizer));
  }
}

uint32_t BoxOracle::rank_of(uint32_t spi) const {
  for (uint32_t rank = 0; rank < shape_.workers; ++rank) {
    if ((spi & ~wire::kSpiToWorker) == shape_.spi(rank)) return rank;
  }
  PBOX_CHECK(!"an spi of this job");
}

void BoxOracle::aggregated(const wire::Parsed& push) {
  const wire::Header& header = push.header;
  PBOX_CHECK(header.type() == wire::PacketType::kPush);
  PBOX_CHECK(header.epoch == shape_.epoch() && header.generation == shape_.generation());
  PBOX_CHECK(header.chunk < shape_.chunks && header.fragment < shape_.fragments());
  Chunk& chunk = chunks_[header.chunk];
  PBOX_CHECK(header.round == chunk.open_round);
  const uint32_t rank = rank_of(header.spi);
  const uint64_t bit = uint64_t{1} << header.fragment;
  PBOX_CHECK((chunk.claimed[rank] & bit) == 0);
  PBOX_CHECK(header.payload_bytes ==
             wire::fragment_length(shape_.chunk_bytes(), kFragmentBytes, header.fragment));

  const bool first = std::none_of(chunk.claimed.begin(), chunk.claimed.end(),
                                  [bit](uint64_t claimed) { return (claimed & bit) != 0; });
  const size_t begin = header.fragment * kFragmentBytes / wire::dtype_bytes(shape_.dtype);
  const size_t count = header.payload_bytes / wire::dtype_bytes(shape_.dtype);
  for (size_t index = 0; index < count; ++index) {
    const float value = reduce::reference::load_element(shape_.dtype, push.payload, index);
    float& sum = chunk.sum[begin + index];
    sum = first ? value : sum + value;
    if (chunk.open_round == 0 && rank == 0) chunk.weights[begin + index] = value;
  }
  chunk.claimed[rank] |= bit;
  const uint64_t all = wire::full_mask(shape_.fragments());
  if (std::all_of(chunk.claimed.begin(), chunk.claimed.end(),
                  [all](uint64_t claimed) { return claimed == all; })) {
    finish(chunk);
  }
}

void BoxOracle::finish(Chunk& chunk) {
  const float share = 1.0f / static_cast<float>(shape_.workers);
  const bool optimizes = shape_.mode == pipeline::Mode::kOptimize;
  if (optimizes && chunk.open_round > 0) step(chunk);
  if (!optimizes && shape_.reduction == pipeline::Reduction::kMean) {
    reduce::reference::scale(chunk.sum.data(), share, chunk.sum.size());
  }
  chunk.result.resize(shape_.chunk_bytes());
  reduce::reference::narrow(shape_.dtype, chunk.result.data(),
                            optimizes ? chunk.weights.data() : chunk.sum.data(), shape_.elements);
  std::fill(chunk.claimed.begin(), chunk.claimed.end(), 0);
  ++chunk.open_round;
  ++rounds_finished_;
}

void BoxOracle::step(Chunk& chunk) {
  const float scale = shape_.reduction == pipeline::Reduction::kMean
                          ? 1.0f / static_cast<float>(shape_.workers)
                          : 1.0f;
  const optimizer::StepParameters parameters{.learning_rate = optimizer_.learning_rate,
                                             .weight_decay = 0,
                                             .gradient_scale = scale,
                                             .step = chunk.open_round};
  optimizer::reference::step(optimizer_.kind, optimizer::step_coefficients(optimizer_, parameters),
                             chunk.weights.data(), chunk.state.data(), chunk.sum.data(),
                             shape_.elements);
}

void BoxOracle::check_result(const wire::Header& header, const std::byte* payload) const {
  PBOX_CHECK(header.chunk < shape_.chunks && header.fragment < shape_.fragments());
  PBOX_CHECK(header.epoch == shape_.epoch() && header.generation == shape_.generation());
  const Chunk& chunk = chunks_[header.chunk];
  PBOX_CHECK(header.round + 1 == chunk.open_round);
  PBOX_CHECK(((header.flags & wire::flag::kLast) != 0) ==
             (header.fragment + 1u == shape_.fragments()));
  const std::byte* expected = chunk.result.data() + size_t{header.fragment} * kFragmentBytes;
  PBOX_CHECK(header.payload_bytes ==
             wire::fragment_length(shape_.chunk_bytes(), kFragmentBytes, header.fragment));
  PBOX_CHECK(same_elements(shape_.dtype, payload, expected, header.payload_bytes));
}

void BoxOracle::check_status(const wire::Header& header, const wire::StatusPayload& status) const {
  const uint32_t rank = rank_of(header.spi);
  PBOX_CHECK(header.chunk < shape_.chunks);
  const Chunk& chunk = chunks_[header.chunk];
  PBOX_CHECK(status.finished_round <= chunk.open_round);
  if (status.finished_round != chunk.open_round) return;  // it was so when it was asked
  PBOX_CHECK(status.missing_workers <= shape_.workers);
  PBOX_CHECK(status.missing_workers == 0 || status.first_missing_rank < shape_.workers);
  const bool open = header.round == chunk.open_round;
  const uint64_t all = wire::full_mask(shape_.fragments());
  PBOX_CHECK(open ? (status.received_mask & ~chunk.claimed[rank]) == 0
                  : status.received_mask == all);
}

}  // namespace pbox::fuzz
