// BoxChecker's checks of compressed chunks.
#include "tests/sim/box_checker.h"
#include "tests/sim/slot_checks.h"
#include "tests/sim/violation.h"

namespace pbox::sim {

// Checks a round's result when it is made, and that it does not change until the next round
// finishes.
void BoxChecker::check_blocks(Shard& entry, const pipeline::Chunk& chunk) {
  const auto index = static_cast<size_t>(&chunk - entry.shard->chunks().data());
  const uint32_t round = chunk.open_round() - 1;
  Shard::Blocks& known = entry.blocks[index];
  const std::vector<std::byte> result(chunk.result[0], chunk.result[0] + chunk.wire_bytes);
  std::optional<std::string> what;
  if (known.rounds == chunk.rounds_finished) {
    if (result != known.result) what = "the result has changed since it was made";
  } else {
    what =
        entry.job->wrong_blocks(chunk.id, round, entry.copies[index], known.residue, result.data());
  }
  known.rounds = chunk.rounds_finished;
  known.result = result;
  require(!what, [&] { return place(*entry.job, chunk, round) + ", at the box: " + *what; });
}

// Checks results that are deltas in the same way. A replicated chunk has the weights of its open
// round before that round has finished, and another box may continue from them. So that round's
// result counts as made already.
void BoxChecker::check_deltas(Shard& entry, const pipeline::Chunk& chunk) {
  if (chunk.rounds_made() == chunk.first_round) return;
  const auto index = static_cast<size_t>(&chunk - entry.shard->chunks().data());
  const auto round = static_cast<uint32_t>(chunk.rounds_made() - 1);
  Shard::Deltas& known = entry.deltas[index];
  const bool is_full =
      chunk.is_stepped ? entry.shard->receives_weights(chunk) : chunk.deltas.is_result_full;
  const std::byte* const from =
      is_full ? reinterpret_cast<const std::byte*>(chunk.weights) : chunk.result[0];
  const std::vector<std::byte> result(
      from,
      from + wire::payload_bytes(is_full ? wire::Dtype::kF32 : chunk.deltas.dtype, chunk.elements));
  std::optional<std::string> what;
  if (known.rounds == chunk.rounds_made()) {
    if (result != known.result) what = "the result has changed since it was made";
  } else {
    what = entry.job->wrong_delta(chunk.id, round, known.held, is_full ? nullptr : result.data(),
                                  chunk.weights);
  }
  known.rounds = chunk.rounds_made();
  known.result = result;
  require(!what, [&] { return place(*entry.job, chunk, round) + ", at the box: " + *what; });
}

}  // namespace pbox::sim
