#include "tests/sim/training.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "nic/wire/crc32c.h"
#include "nic/wire/push_weight.h"
#include "tests/sim/violation.h"

namespace pbox::sim {

Training::Training(JobModel& job, uint32_t rank, uint64_t seed)
    : job_(job),
      rank_(rank),
      process_(job.begin_process(rank)),
      rng_(seed),
      tensors_(job.options.tensors.size()) {
  order_.resize(tensors_.size());
  std::iota(order_.begin(), order_.end(), 0u);
  for (uint32_t index = 0; index < tensors_.size(); ++index) {
    const size_t bytes = size_t{job.options.tensors[index].elements} * job.element_bytes();
    tensors_[index].input.resize(bytes);
    tensors_[index].output.resize(bytes);
    scribble(tensors_[index].input, 0);
    scribble(tensors_[index].output, 0);
  }
}

// Between operations the buffers belong to the application. It writes a pattern into them, which
// shows whether a late packet has overwritten them.
Training::Pattern Training::pattern(uint32_t round) {
  Pattern pattern;
  for (size_t index = 0; index < pattern.size(); ++index) {
    pattern[index] = static_cast<std::byte>(0xa5 + 31 * round + 7 * index);
  }
  return pattern;
}

void Training::scribble(std::vector<std::byte>& buffer, uint32_t round) {
  const Pattern pattern = Training::pattern(round);
  for (size_t at = 0; at < buffer.size(); at += pattern.size()) {
    std::memcpy(buffer.data() + at, pattern.data(), std::min(pattern.size(), buffer.size() - at));
  }
}

bool Training::is_scribble(const std::vector<std::byte>& buffer, uint32_t round) {
  const Pattern pattern = Training::pattern(round);
  for (size_t at = 0; at < buffer.size(); at += pattern.size()) {
    const size_t bytes = std::min(pattern.size(), buffer.size() - at);
    if (std::memcmp(buffer.data() + at, pattern.data(), bytes) != 0) return false;
  }
  return true;
}

bool Training::may_start(const Tensor& tensor) const {
  if (tensor.busy) return false;
  if (tensor.fetches) return true;
  return (tensor.round < job_.options.rounds || goes_on()) &&
         (!job_.options.by_steps || tensor.round == step_);
}

bool Training::goes_on() const {
  constexpr uint32_t kStepsAlone = 3;
  const JobOptions& options = job_.options;
  if (options.sync.model != wire::SyncModel::kDrop) return false;
  const bool may_leave = job_.may_lack_ranks() && options.parts == 1;
  if (!may_leave) return !job_.reads.all_finished();
  return rank_ == options.workers - 1 && step_ < options.rounds + kStepsAlone;
}

bool Training::done() const {
  return tensors_done_ == tensors_.size() && !goes_on();
}

std::optional<uint64_t> Training::operations_dropped() const {
  // A round may contain the push of an earlier process and not this one's. Compressed weights do
  // not show which pushes they contain.
  const bool is_known = !went_on_ && !took_over_ && job_.has_known_sums() &&
                        !job_.options.sync.counts_late && !job_.deltas;
  return is_known ? std::optional(operations_dropped_) : std::nullopt;
}

void Training::fill(uint32_t index, std::vector<std::byte>& input) {
  const uint32_t round = tensors_[index].round;
  if (!job_.options.is_relaxed()) {
    job_.gradients.fill(rank_, process_, index, round, input);
    return;
  }
  if (!tensors_[index].fetches) job_.reads.begin(rank_, index, round);
  if (job_.options.tensors[index].compression != wire::Compression::kNone) {
    job_.gradients.fill(rank_, process_, index, round, input);
  } else {
    job_.reads.updates().fill(rank_, round, index, input);
  }
  went_on_ = went_on_ || round >= job_.options.rounds;
}

uint64_t Training::start_due(worker::Membership& membership, uint64_t now_ns,
                             uint64_t rack_now_ns) {
  uint64_t next_ns = UINT64_MAX;
  for (const uint32_t index : order_) {
    const Tensor& tensor = tensors_[index];
    if (!may_start(tensor)) continue;
    if (tensor.ready_ns <= now_ns) {
      start(membership, index, rack_now_ns);
    } else {
      next_ns = std::min(next_ns, tensor.ready_ns);
    }
  }
  return next_ns;
}

void Training::take_back(uint32_t index) {
  Tensor& tensor = tensors_[index];
  scribble(tensor.input, tensor.round);
  if (is_table(index) && tensor.round > 0 && !tensor.fetches) {
    tensor.output_crc = wire::crc32c(0, tensor.output.data(), tensor.output.size());
  } else {
    scribble(tensor.output, tensor.round);
  }
}

bool Training::are_untouched(uint32_t index) const {
  const Tensor& tensor = tensors_[index];
  if (!is_scribble(tensor.input, tensor.round)) return false;
  if (!is_table(index) || tensor.round == 0 || tensor.fetches) {
    return is_scribble(tensor.output, tensor.round);
  }
  return wire::crc32c(0, tensor.output.data(), tensor.output.size()) == tensor.output_crc;
}

std::shared_ptr<const worker::RowPush> Training::rows_of(uint32_t index) {
  Tensor& tensor = tensors_[index];
  const uint32_t row_bytes = job_.options.tensors[index].row_elements * job_.element_bytes();
  const auto digits = job_.options.is_relaxed()
                          ? std::span<const uint8_t>()
                          : job_.gradients.digits(rank_, process_, index, tensor.round);
  tensor.row_ids.clear();
  tensor.rows.clear();
  for (size_t first = 0; first < tensor.input.size(); first += row_bytes) {
    const size_t element = first / job_.element_bytes();
    const bool is_pushed = digits.empty()
                               ? job_.reads.updates().pushes(rank_, tensor.round, index, element)
                               : digits[element] != 0;
    if (!is_pushed) continue;
    tensor.row_ids.push_back(first / row_bytes);
    const size_t end = std::min(tensor.input.size(), first + row_bytes);
    tensor.rows.insert(tensor.rows.end(), tensor.input.begin() + static_cast<ptrdiff_t>(first),
                       tensor.input.begin() + static_cast<ptrdiff_t>(end));
    tensor.rows.resize(tensor.row_ids.size() * row_bytes);
  }
  return std::make_shared<const worker::RowPush>(
      worker::RowPush{.ids = tensor.row_ids, .values = tensor.rows.data(), .row_bytes = row_bytes});
}

void Training::start(worker::Membership& membership, uint32_t index, uint64_t rack_now_ns) {
  Tensor& tensor = tensors_[index];
  require(!job_.checks || are_untouched(index), [&] {
    return job_.title + " rank " + std::to_string(rank_) + ": a buffer of tensor " +
           std::to_string(index) + " changed while it belonged to the application";
  });
  const bool in_place = job_.options.in_place && !is_table(index);
  auto& input = in_place ? tensor.output : tensor.input;
  const bool initial_weights =
      job_.options.mode == pipeline::Mode::kOptimize && (tensor.round == 0 || tensor.fetches);
  fill(index, input);
  tensor.input_crc = wire::crc32c(0, input.data(), input.size());
  tensor.busy = true;
  tensor.started_ns = rack_now_ns;
  tensor.priority = job_.options.priority_of(rank_, index);
  if (!job_.options.same_order) tensor.priority = static_cast<int32_t>(rng_.below(4));
  worker::Operation operation{.tensor = index,
                              .input = input.data(),
                              .output = tensor.output.data(),
                              .priority = tensor.priority,
                              .initial_weights = initial_weights};
  if (job_.options.weighted && !initial_weights) {
    const uint32_t weight = job_.options.weight(rank_, index, tensor.round);
    operation.weight_code = *wire::nearest_weight_code(weight);
  }
  if (is_table(index) && !initial_weights) {
    operation.input = nullptr;
    operation.rows = rows_of(index);
  }
  membership.start(operation);
}

// `contributors`: the number that Exchange reports for the result.
void Training::check_result(uint32_t index, uint32_t contributors) {
  const Tensor& tensor = tensors_[index];
  const auto where = [&] {
    return job_.title + " rank " + std::to_string(rank_) + " tensor " + std::to_string(index) +
           " round " + std::to_string(tensor.round);
  };
  require((job_.options.in_place && !is_table(index)) ||
              wire::crc32c(0, tensor.input.data(), tensor.input.size()) == tensor.input_crc,
          [&] { return where() + ": the worker wrote to the input buffer"; });
  const bool has_own = job_.may_lack_ranks() && job_.has_known_sums() &&
                       !job_.options.is_relaxed() && tensor.round >= tensor.own_from;
  for (uint32_t id = 0; id < job_.chunks.size(); ++id) {
    const JobModel::Chunk& chunk = job_.chunks[id];
    if (chunk.tensor != index) continue;
    const std::byte* bytes =
        tensor.output.data() + size_t{chunk.first_element} * job_.element_bytes();
    auto what = job_.options.is_relaxed()
                    ? job_.read(rank_, id, tensor.round - tensor.fetches, tensor.fetches, bytes)
                : tensor.fetches ? job_.wrong(id, tensor.round - 1, 0, bytes)
                                 : job_.consume(rank_, id, tensor.round, bytes);
    // A fetch returns the newest weights, so some of a tensor's chunks may be a round ahead.
    const bool is_summed = tensor.fetches && !job_.options.is_relaxed();
    if (what && is_summed) what = job_.wrong(id, tensor.round, 0, bytes);
    if (!what && has_own) what = job_.wrong(id, tensor.round, 1u << rank_, bytes);
    require(!what, [&] { return where() + ", chunk " + std::to_string(id) + ": " + *what; });
  }
  operations_dropped_ += job_.reads.take_dropped(rank_) ? 1 : 0;
  check_contributors(index, contributors);
}

void Training::check_contributors(uint32_t index, uint32_t contributors) const {
  const JobOptions& options = job_.options;
  if (!job_.may_lack_ranks() || !job_.has_known_sums() || options.is_relaxed()) return;
  uint32_t fewest = options.workers;
  for (uint32_t id = 0; id < job_.chunks.size(); ++id) {
    if (job_.chunks[id].tensor != index) continue;
    fewest = std::min(fewest, job_.contributors(id, tensors_[index].round));
  }
  const uint32_t said = std::min(contributors, options.workers);
  require(said == fewest, [&] {
    return job_.title + " rank " + std::to_string(rank_) + " tensor " + std::to_string(index) +
           " round " + std::to_string(tensors_[index].round) + ": " + std::to_string(fewest) +
           " ranks are in the result, but " + std::to_string(said) + " are reported";
  });
}

void Training::resume(const worker::Exchange& exchange, uint64_t now_ns) {
  const bool optimizes = job_.options.mode == pipeline::Mode::kOptimize;
  step_ = UINT32_MAX;
  for (uint32_t index = 0; index < tensors_.size(); ++index) {
    Tensor& tensor = tensors_[index];
    tensor.round = exchange.round(index);
    // Some of its chunks may have finished that round before this process joined.
    tensor.own_from = tensor.round + 1;
    tensor.ready_ns = now_ns;
    tensor.fetches = optimizes && tensor.round > 0;
    took_over_ = took_over_ || tensor.fetches;
    take_back(index);
    step_ = std::min(step_, tensor.round);
    tensors_done_ += !tensor.fetches && tensor.round >= job_.options.rounds;
  }
}

void Training::completed(uint32_t index, const worker::Exchange& exchange, uint64_t now_ns) {
  Tensor& tensor = tensors_[index];
  require(tensor.busy, [&] {
    return job_.title + " rank " + std::to_string(rank_) + ": tensor " + std::to_string(index) +
           " completed twice";
  });
  if (job_.checks) check_result(index, exchange.contributors(index));
  tensor.busy = false;
  const bool has_fetched = std::exchange(tensor.fetches, false);
  if (!has_fetched) ++tensor.round;
  ++rounds_completed_;
  take_back(index);
  tensor.ready_ns = now_ns + think_ns(job_.options, rank_, tensor.round, rng_);
  // Other ranks may have gone beyond the last round before this process took the rank's place.
  tensors_done_ +=
      tensor.round == job_.options.rounds || (has_fetched && tensor.round > job_.options.rounds);
  if (tensors_done_ == tensors_.size()) job_.reads.finish(rank_);
  const bool step_is_over = std::all_of(tensors_.begin(), tensors_.end(), [&](const Tensor& other) {
    return !other.busy && other.round > step_;
  });
  if (!job_.options.by_steps || !step_is_over) return;
  ++step_;
  if (job_.options.same_order) return;
  for (size_t left = order_.size(); left > 1; --left) {
    std::swap(order_[left - 1], order_[rng_.below(left)]);
  }
}

uint64_t Training::oldest_start_ns() const {
  uint64_t oldest_ns = UINT64_MAX;
  for (const Tensor& tensor : tensors_) {
    if (tensor.busy) oldest_ns = std::min(oldest_ns, tensor.started_ns);
  }
  return oldest_ns;
}

std::string Training::waiting_for() const {
  std::string text;
  for (size_t index = 0; index < tensors_.size(); ++index) {
    const Tensor& tensor = tensors_[index];
    if (tensor.round >= job_.options.rounds) continue;
    text += " tensor " + std::to_string(index) +
            (tensor.busy ? " round " : " (not started) round ") + std::to_string(tensor.round) +
            ";";
  }
  return text;
}

}  // namespace pbox::sim
