#include "tests/fuzz/sync_oracle.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "nic/wire/chunk_layout.h"
#include "pipeline/optimizer/reference.h"
#include "pipeline/reduce/reference.h"
#include "pipeline/sync/rules.h"

namespace pbox::fuzz {

using wire::SyncModel;

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

SyncOracle::SyncOracle(const JobShape& shape, const std::vector<float>& weights)
    : shape_(shape),
      weights_(weights),
      state_(shape.fragments()),
      updates_(shape.fragments()),
      next_(shape.workers, 1),
      claimed_(shape.workers),
      answered_(shape.workers) {}

bool SyncOracle::is_fresh() const {
  return shape_.sync.reads != wire::Reads::kCached;
}

uint64_t SyncOracle::fastest() const {
  uint64_t fastest = 0;
  for (uint32_t rank = 0; rank < shape_.workers; ++rank) {
    if (!shape_.absent[rank]) fastest = std::max(fastest, next_[rank] - 1);
  }
  return fastest;
}

bool SyncOracle::blocks(uint32_t rank, uint64_t round) const {
  const int64_t k = static_cast<int64_t>(round) - static_cast<int64_t>(oldest_);
  const int64_t s = shape_.sync.staleness;
  if (shape_.sync.reads == wire::Reads::kAnswered) return k + 1 > s;
  if (shape_.sync.model == SyncModel::kAsp || k < s) return false;
  if (shape_.sync.model == SyncModel::kSsp) return true;
  double probability = static_cast<double>(shape_.sync.probability);
  if (shape_.sync.model == SyncModel::kDpssp) {
    probability /= 1 + std::exp(static_cast<double>(s - k));
  }
  const uint64_t seed = sync::seed_of("");  // these jobs have no name
  return round == fastest() && sync::draw(seed, rank, round) <= probability;
}

void SyncOracle::aggregated(uint32_t rank, const wire::Parsed& push,
                            const optimizer::OptimizerSpec& spec) {
  const wire::Header& header = push.header;
  PBOX_CHECK(header.round == static_cast<uint32_t>(next_[rank]) && parked_.count(rank) == 0);
  const uint64_t bit = uint64_t{1} << header.fragment;
  PBOX_CHECK((claimed_[rank] & bit) == 0);
  claimed_[rank] |= bit;
  const size_t begin = header.fragment * kFragmentBytes / wire::dtype_bytes(shape_.dtype);
  const size_t count = header.payload_bytes / wire::dtype_bytes(shape_.dtype);
  std::vector<float> gradient(count);
  for (size_t index = 0; index < count; ++index) {
    gradient[index] = reduce::reference::load_element(shape_.dtype, push.payload, index);
  }
  const bool is_mean = shape_.reduction == pipeline::Reduction::kMean;
  const optimizer::StepParameters parameters{
      .learning_rate = spec.learning_rate,
      .weight_decay = 0,
      .gradient_scale = is_mean ? 1.0f / static_cast<float>(shape_.workers) : 1.0f,
      .step = ++updates_[header.fragment]};
  auto& state = state_[header.fragment];
  state.resize(count * optimizer::state_floats_per_element(spec.kind));
  optimizer::reference::step(spec.kind, optimizer::step_coefficients(spec, parameters),
                             weights_.data() + begin, state.data(), gradient.data(), count);
  if (claimed_[rank] == wire::full_mask(shape_.fragments())) complete_push(rank);
}

void SyncOracle::complete_push(uint32_t rank) {
  const uint64_t round = next_[rank]++;
  claimed_[rank] = answered_[rank] = 0;
  move_oldest();
  if (!is_fresh() || !blocks(rank, round)) return;
  ++delayed_;
  if (shape_.sync.reads == wire::Reads::kAnswered) {
    parked_[rank] = round - shape_.sync.staleness;
  } else {
    parked_[rank] = shape_.sync.release == wire::Release::kLazy ? round : oldest_;
  }
}

void SyncOracle::somebody_excluded() {
  for (uint32_t rank = 0; rank < shape_.workers; ++rank) {
    if (shape_.absent[rank]) parked_.erase(rank);
  }
  if (shape_.present() > 0) move_oldest();
}

void SyncOracle::move_oldest() {
  uint64_t oldest = UINT64_MAX;
  for (uint32_t rank = 0; rank < shape_.workers; ++rank) {
    if (!shape_.absent[rank]) oldest = std::min(oldest, next_[rank]);
  }
  PBOX_CHECK(oldest >= oldest_);
  oldest_ = oldest;
  std::erase_if(parked_, [&](const auto& parked) { return parked.second < oldest_; });
}

uint32_t SyncOracle::applied(uint32_t rank, uint32_t fragment) const {
  const uint64_t more = is_fresh() ? 0 : claimed_[rank] >> fragment & 1;
  return static_cast<uint32_t>(next_[rank] + more - parked_.count(rank));
}

void SyncOracle::check_result(uint32_t rank, const wire::Header& header, const std::byte* payload) {
  PBOX_CHECK(header.round == static_cast<uint32_t>(oldest_ - 1));
  PBOX_CHECK(header.contributors() == 0);
  PBOX_CHECK(header.applied() == applied(rank, header.fragment));
  if (shape_.sync.model == SyncModel::kSsp && is_fresh()) {
    PBOX_CHECK(oldest_ + shape_.sync.staleness >= header.applied());
  }
  const uint32_t bytes =
      wire::fragment_length(shape_.chunk_bytes(), kFragmentBytes, header.fragment);
  PBOX_CHECK(header.payload_bytes == bytes);
  const size_t begin = header.fragment * kFragmentBytes / wire::dtype_bytes(shape_.dtype);
  std::vector<std::byte> expected(bytes);
  reduce::reference::narrow(shape_.dtype, expected.data(), weights_.data() + begin,
                            bytes / wire::dtype_bytes(shape_.dtype));
  PBOX_CHECK(same_elements(shape_.dtype, payload, expected.data(), bytes));
  if (parked_.count(rank) == 0) answered_[rank] |= uint64_t{1} << header.fragment;
}

void SyncOracle::check_status(uint32_t rank, const wire::Header& header,
                              const wire::StatusPayload& status) const {
  if (status.finished_round == 0) return;  // made before the initial weights were there
  const auto next = static_cast<uint32_t>(next_[rank]);
  PBOX_CHECK(status.finished_round <= oldest_);
  PBOX_CHECK(wire::round_distance(header.round, next) <= 0);
  PBOX_CHECK(status.missing_workers < shape_.workers);
  PBOX_CHECK(status.missing_workers == 0 || status.first_missing_rank != rank);
  if (header.round == next) PBOX_CHECK((status.received_mask & ~claimed_[rank]) == 0);
}

void SyncOracle::check_all_answered() const {
  if (!is_fresh()) return;
  for (uint32_t rank = 0; rank < shape_.workers; ++rank) {
    const bool waits = parked_.count(rank) > 0 || shape_.absent[rank];
    if (waits || next_[rank] == 1) continue;
    PBOX_CHECK(answered_[rank] == wire::full_mask(shape_.fragments()));
  }
}

}  // namespace pbox::fuzz
