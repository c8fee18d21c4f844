#include "tests/sim/job_model.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "nic/quantize/rounding.h"
#include "nic/wire/chunk_layout.h"
#include "pipeline/reduce/reference.h"
#include "tests/sim/violation.h"

namespace pbox::sim {

JobModel::JobModel(uint64_t seed, uint32_t index, const JobOptions& options, HostId first_host,
                   bool checks)
    : index(index),
      checks(checks),
      options(options),
      first_host(first_host),
      name(options.name()),
      title(options.parts == 1 ? name : name + "/" + std::to_string(options.part)),
      gradients(seed, index, options),
      oracle(gradients, options.chunk_bytes / wire::dtype_bytes(options.dtype)),
      reads(options),
      fragment_bytes_(wire::fragment_bytes_for_mtu(options.path_mtu, false)),
      processes_(options.workers) {
  const uint32_t chunk_elements = options.chunk_bytes / element_bytes();
  for (uint32_t tensor = 0; tensor < options.tensors.size(); ++tensor) {
    const uint32_t elements = options.tensors[tensor].elements;
    for (uint32_t first = 0; first < elements; first += chunk_elements) {
      chunks.push_back({tensor, first, std::min(chunk_elements, elements - first)});
    }
  }
  open_blocks();
  for (uint32_t tensor = 0; tensor < options.tensors.size(); ++tensor) {
    models.push_back(options.sync_of(tensor));
  }
  consumed_.resize(chunks.size());
  right_.resize(chunks.size());
  if (options.is_collective) collectives.emplace(seed, index, options);
  may_fail = options.rogue || rejected();
  for (uint32_t rank = 0; options.is_elastic() && rank < options.workers; ++rank) {
    awaited.insert(rank);
  }
}

std::optional<JobModel::Push> JobModel::rejected() const {
  if (collectives && collectives->rejected()) {
    return Push{collectives->rejected()->rank, collectives->rejected()->round};
  }
  const auto& rejected = gradients.rejected();
  return rejected ? std::optional(Push{rejected->rank, rejected->round}) : std::nullopt;
}

bool JobModel::is_rejected(uint32_t id, uint32_t round) const {
  if (collectives) {
    const auto& piece = collectives->rejected();
    return piece && piece->slot == id && piece->round == round;
  }
  const auto& rejected = gradients.rejected();
  if (!rejected || rejected->tensor != chunks[id].tensor || rejected->round != round) return false;
  const uint32_t first = chunks[id].first_element;
  return rejected->element >= first && rejected->element - first < chunks[id].elements;
}

uint32_t JobModel::begin_process(uint32_t rank) {
  const uint32_t process = processes_[rank];
  has_new_process_ = has_new_process_ || process > 0;
  if (process == 0 || options.mode == pipeline::Mode::kAggregate) ++processes_[rank];
  return processes_[rank] - 1;
}

bool JobModel::has_replacements() const {
  return std::any_of(processes_.begin(), processes_.end(),
                     [](uint32_t count) { return count > 1; });
}

void JobModel::give_back(std::span<const uint32_t> give, std::span<const uint32_t> open_rounds) {
  if (!checks || options.mode == pipeline::Mode::kAggregate || !has_known_sums()) return;
  // A job that may end with its box may also continue from the workers' weights.
  require(may_lose_state || may_fail || give.empty(),
          [&] { return title + ": the optimizer restarts although no box was lost"; });
  for (const uint32_t id : give) {
    if (has_deltas(id)) continue;  // its optimizer has no state
    const auto state = adopted.find(id);
    oracle.restart_optimizer(chunks[id].tensor, chunks[id].first_element, open_rounds[id],
                             state == adopted.end() ? nullptr : &state->second);
  }
}

Oracle::State JobModel::saved_state(const pipeline::ChunkState& state) const {
  const auto weights_end = state.values.begin() + chunks[state.chunk].elements;
  return {.weights = {state.values.begin(), weights_end},
          .optimizer_state = {weights_end, state.values.end()},
          .steps = state.steps};
}

bool JobModel::has_had(const pipeline::ChunkState& state, uint64_t rounds) {
  const bool is_known = checks && has_known_sums() && !may_lack_ranks() && !options.is_relaxed();
  if (!is_known || has_deltas(state.chunk)) return true;
  const Chunk& chunk = chunks[state.chunk];
  return oracle.has_had(chunk.tensor, chunk.first_element, static_cast<uint32_t>(rounds),
                        saved_state(state));
}

void JobModel::begin_with(const snapshot::Restored& restored) {
  require(!began_with_.is_known || began_with_.number == restored.number,
          [&] { return title + ": a part begins with another snapshot than before"; });
  if (std::exchange(began_with_.is_known, true)) return;
  began_with_.number = restored.number;
  began_with_.steps = restored.steps;
  for (const pipeline::ChunkState& state : restored.chunks) {
    const Chunk& chunk = chunks[state.chunk];
    oracle.begin_with(chunk.tensor, chunk.first_element, saved_state(state));
  }
}

std::optional<std::string> JobModel::wrong(uint32_t id, uint32_t round, uint32_t ranks,
                                           const std::byte* bytes) {
  if (!has_known_sums()) return std::nullopt;
  // A rank that is left out may not have made the push that would be rejected.
  const bool is_refused =
      is_rejected(id, round) && (!may_lack_ranks() || (ranks >> rejected()->rank & 1) != 0);
  if (is_refused) return "there is a result, although the guard rejects a push to it";
  const Chunk& chunk = chunks[id];
  if (is_compressed(id)) {
    if (has_lost_residues()) return std::nullopt;
    know_pushes(id, 0);  // the initial weights
    return deltas ? deltas->consumed(id, round, bytes) : blocks->consumed(id, round, bytes);
  }
  if (!may_lack_ranks() && !has_replacements()) {
    const std::byte* expected =
        oracle.result(chunk.tensor, round).data() + size_t{chunk.first_element} * element_bytes();
    if (std::memcmp(bytes, expected, size_t{chunk.elements} * element_bytes()) == 0) {
      return std::nullopt;
    }
    return "the result differs from the oracle's";
  }
  if (!may_lack_ranks()) ranks = all_ranks();
  const size_t size = size_t{chunk.elements} * element_bytes();
  Right& right = right_[id][round & 1];
  // A result that was right stays right, because more processes only make more results right.
  if (right.round == round && (right.ranks & ranks) == ranks && right.bytes.size() == size &&
      std::memcmp(right.bytes.data(), bytes, size) == 0) {
    return std::nullopt;
  }
  uint32_t in_all = ~0u, contributors = options.workers;
  const uint32_t fragment_elements = fragment_bytes_ / element_bytes();
  for (uint32_t first = 0; first < chunk.elements; first += fragment_elements) {
    const uint32_t count = std::min(fragment_elements, chunk.elements - first);
    const auto found = ranks_in(chunk, round, ranks, bytes, first, count);
    if (!found) {
      return "elements from " + std::to_string(first) +
             " on are not a sum that contains all ranks of mask " + std::to_string(ranks);
    }
    in_all &= *found;
    contributors = std::min(contributors, static_cast<uint32_t>(std::popcount(*found)));
  }
  right = {.round = round,
           .ranks = in_all,
           .contributors = contributors,
           .bytes = {bytes, bytes + size}};
  return std::nullopt;
}

// Computes the result as the box does: the sum, divided for a mean, converted to the dtype.
float JobModel::result(double sum, uint32_t count) const {
  const bool is_mean = options.reduction == pipeline::Reduction::kMean;
  const auto whole = static_cast<float>(sum);
  const float result = is_mean ? whole * (1.0f / static_cast<float>(count)) : whole;
  std::array<std::byte, 4> bytes;
  reduce::reference::narrow(options.dtype, bytes.data(), &result, 1);
  return reduce::reference::load_element(options.dtype, bytes.data(), 0);
}

std::optional<uint32_t> JobModel::contributors(const Chunk& chunk, uint32_t round, uint32_t first,
                                               std::span<const double> sums) const {
  const double end = std::exp2(3 * options.workers);
  const bool in_range =
      std::all_of(sums.begin(), sums.end(), [end](double sum) { return sum >= 0 && sum < end; });
  if (!in_range) return std::nullopt;
  const std::vector<uint32_t> whole(sums.begin(), sums.end());
  std::vector<uint8_t> own(whole.size());
  const uint64_t begin = chunk.first_element + uint64_t{first};
  uint32_t found = 0;
  for (uint32_t rank = 0; rank < options.workers; ++rank) {
    for (size_t index = 0; index < whole.size(); ++index) {
      own[index] = static_cast<uint8_t>(whole[index] >> (3 * rank) & 7);
    }
    bool fits = false;
    for (uint32_t process = 0; process < processes_[rank] && !fits; ++process) {
      const auto digits = gradients.digits(rank, process, chunk.tensor, round);
      fits = std::memcmp(own.data(), digits.data() + begin, own.size()) == 0;
    }
    const bool is_absent =
        std::all_of(own.begin(), own.end(), [](uint8_t digit) { return digit == 0; });
    if (!fits && !is_absent) return std::nullopt;
    if (fits) found |= 1u << rank;
  }
  return found;
}

// Returns the ranks whose part of all these sums is 0.
uint32_t JobModel::silent_ranks(std::span<const double> sums) const {
  uint32_t loud = 0;
  for (const double sum : sums) {
    for (uint32_t rank = 0; rank < options.workers; ++rank) {
      if ((static_cast<uint64_t>(sum) >> (3 * rank) & 7) != 0) loud |= 1u << rank;
    }
  }
  return all_ranks() & ~loud;
}

// A fragment contains whole contributions only: there must be one set of ranks, with one process
// per rank, that explains the sums of all its elements. Returns that set if it includes `ranks`,
// otherwise nothing. For a mean, each possible divisor is tried.
std::optional<uint32_t> JobModel::ranks_in(const Chunk& chunk, uint32_t round, uint32_t ranks,
                                           const std::byte* bytes, uint32_t first,
                                           uint32_t count) const {
  const bool is_mean = options.reduction == pipeline::Reduction::kMean;
  std::vector<double> sums(count);
  for (uint32_t divisor = options.weights(all_ranks(), chunk.tensor, round); divisor > 0;
       --divisor) {
    bool fits = true;
    for (uint32_t index = 0; index < count && fits; ++index) {
      const float value = reduce::reference::load_element(options.dtype, bytes, first + index);
      sums[index] = std::rint(double{value} * (is_mean ? divisor : 1));
      fits = result(sums[index], divisor) == value;
    }
    const auto found = fits ? contributors(chunk, round, first, sums) : std::nullopt;
    if (found && *found != 0 && (*found & ranks) == ranks &&
        (!is_mean || options.weights(*found, chunk.tensor, round) == divisor)) {
      return found;
    }
    if (!is_mean) return std::nullopt;
  }
  return std::nullopt;
}

std::optional<std::string> JobModel::wrong_sums(uint32_t id, uint32_t round, uint32_t ranks,
                                                uint32_t first, std::span<const float> sums) {
  if (is_rejected(id, round)) return std::nullopt;  // the job is about to end
  const Chunk& chunk = chunks[id];
  if (is_compressed(id)) return wrong_decoded(id, round, ranks, first, sums);
  if (has_replacements()) {
    const std::vector<double> exact(sums.begin(), sums.end());
    // A rank whose part is zero may be in the sum or not.
    const auto found = contributors(chunk, round, first, exact);
    const uint32_t silent = options.pushes_zeros ? silent_ranks(exact) : 0;
    if (found && (*found | silent) == (ranks | silent)) return std::nullopt;
    return "elements from " + std::to_string(first) + " on are not a sum of ranks of mask " +
           std::to_string(ranks);
  }
  std::vector<float> expected(sums.size());
  gradients.sum(ranks, chunk.tensor, round, chunk.first_element + uint64_t{first}, expected);
  if (std::memcmp(sums.data(), expected.data(), sums.size_bytes()) == 0) return std::nullopt;
  for (size_t index = 0; index < sums.size(); ++index) {
    if (sums[index] == expected[index]) continue;
    const uint64_t of_tensor = chunk.first_element + uint64_t{first} + index;
    return "element " + std::to_string(first + index) + ": " +
           gradients.explain(double{sums[index]}, ranks, chunk.tensor, round, of_tensor);
  }
  return std::nullopt;
}

std::optional<std::string> JobModel::wrong_decoded(uint32_t id, uint32_t round, uint32_t ranks,
                                                   uint32_t first, std::span<const float> sums) {
  if (has_lost_residues()) return std::nullopt;
  know_pushes(id, round);
  std::vector<float> expected(sums.size());
  blocks->sum(id, round, ranks, first, expected);
  if (std::memcmp(sums.data(), expected.data(), sums.size_bytes()) == 0) return std::nullopt;
  return "elements from " + std::to_string(first) +
         " on are not a sum of the blocks that ranks of mask " + std::to_string(ranks) + " push";
}

std::optional<std::string> JobModel::wrong_blocks(uint32_t id, uint32_t round, bool is_copy,
                                                  std::vector<float>& residue,
                                                  const std::byte* made) {
  if (has_lost_residues() || !has_known_sums()) return std::nullopt;
  know_pushes(id, round);
  return is_copy ? blocks->given_back(id, round, made) : blocks->made(id, round, residue, made);
}

std::optional<std::string> JobModel::wrong_delta(uint32_t id, uint32_t round,
                                                 DeltaOracle::Held& held, const std::byte* delta,
                                                 const float* weights) {
  if (has_lost_residues() || !has_known_sums()) return std::nullopt;
  know_pushes(id, round);
  return deltas->made(id, round, held, delta, {weights, weights + chunks[id].elements});
}

wire::Dtype JobModel::wire_dtype(uint32_t id, uint32_t round) const {
  if (options.mode == pipeline::Mode::kOptimize && round == 0) return options.dtype;
  const wire::Compression compression = options.tensors[chunks[id].tensor].compression;
  return compression == wire::Compression::kNone ? options.dtype : wire::payload_dtype(compression);
}

void JobModel::open_blocks() {
  for (uint32_t id = 0; id < chunks.size(); ++id) {
    const Chunk& chunk = chunks[id];
    if (options.tensors[chunk.tensor].compression == wire::Compression::kNone) continue;
    if (!blocks) blocks.emplace(name, options.part, options.reduction, options.workers);
    blocks->add({.id = id,
                 .dtype = wire_dtype(id, 1),
                 .tensor_hash = quantize::hash_of(options.tensor_name(chunk.tensor)),
                 .first_element = chunk.first_element,
                 .elements = chunk.elements});
  }
  if (blocks && options.mode == pipeline::Mode::kOptimize) deltas.emplace(options, *blocks);
}

// Records in the oracle of blocks the pushes of all ranks up to and including this round.
void JobModel::know_pushes(uint32_t id, uint32_t round) {
  const Chunk& chunk = chunks[id];
  std::vector<float> tensor(options.tensors[chunk.tensor].elements);
  for (uint32_t rank = 0; rank < options.workers; ++rank) {
    for (uint32_t next = blocks->pushed_rounds(id, rank); next <= round; ++next) {
      gradients.fill_compressed(rank, chunk.tensor, next, tensor);
      const auto begin = tensor.begin() + chunk.first_element;
      const BlockOracle::Values values(begin, begin + chunk.elements);
      const bool are_weights = deltas && next == 0;
      if (are_weights && rank == 0) deltas->begin(id, values);
      are_weights ? blocks->push_weights(id, rank) : blocks->push(id, rank, values);
    }
  }
}

std::optional<std::string> JobModel::consume(uint32_t rank, uint32_t id, uint32_t round,
                                             const std::byte* bytes) {
  if (!has_known_sums()) return std::nullopt;
  const bool has_oracle = options.mode == pipeline::Mode::kOptimize && !has_deltas(id);
  if (has_oracle) return wrong(id, round, 0, bytes);
  const size_t size = size_t{chunks[id].elements} * element_bytes();
  Consumed& consumed = consumed_[id][round];
  if (consumed.ranks.empty()) consumed.bytes.assign(bytes, bytes + size);
  consumed.ranks.insert(rank);
  if (std::memcmp(consumed.bytes.data(), bytes, size) != 0) {
    return "rank " + std::to_string(*consumed.ranks.begin()) + " has consumed a different result";
  }
  return wrong(id, round, 0, bytes);
}

std::optional<std::string> JobModel::read(uint32_t rank, uint32_t id, uint32_t round, bool fetches,
                                          const std::byte* bytes) {
  if (!has_known_sums()) return std::nullopt;
  if (has_deltas(id)) return deltas->read(rank, id, round, bytes);
  const Chunk& chunk = chunks[id];
  const uint32_t fragment_elements = fragment_bytes_ / element_bytes();
  for (uint32_t first = 0; first < chunk.elements; first += fragment_elements) {
    const ReadOracle::Part part{.rank = rank,
                                .tensor = chunk.tensor,
                                .round = round,
                                .fetches = fetches,
                                .first = chunk.first_element + uint64_t{first},
                                .count = std::min(fragment_elements, chunk.elements - first)};
    const auto what = reads.read(part, bytes + size_t{first} * element_bytes());
    if (what) return "elements from " + std::to_string(first) + " on: " + *what;
  }
  return std::nullopt;
}

void JobModel::begin_run() {
  for (auto& rounds : consumed_) rounds.clear();
  for (uint32_t tensor = 0; tensor < models.size(); ++tensor)
    models[tensor] = options.sync_of(tensor);
  if (!options.is_relaxed()) return;
  reads.begin_run();
  if (deltas) deltas->begin_run();
}

void JobModel::forget(uint32_t rank) {
  for (auto& rounds : consumed_) {
    for (auto& [round, consumed] : rounds) consumed.ranks.erase(rank);
  }
}

}  // namespace pbox::sim
