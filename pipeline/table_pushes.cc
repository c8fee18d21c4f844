#include "pipeline/table_pushes.h"

#include <algorithm>

#include "nic/wire/chunk_layout.h"
#include "pipeline/round_result.h"
#include "pipeline/value_guard.h"

namespace pbox::pipeline {
namespace {

// Does what measure_gradient() does, for rows. Rows that the rank does not push count as zero.
void measure_rows(const reduce::Kernels& kernels, const JobShard& shard, Session& session,
                  const Chunk& chunk, const wire::Parsed& parsed, const wire::RowsView& rows) {
  if (!GradientSquares::measures(parsed.header.round)) return;
  const uint32_t element_bytes = wire::dtype_bytes(chunk.dtype);
  const auto squares = kernels.finite_squares[static_cast<size_t>(chunk.dtype)];
  double sum = 0;
  wire::for_each_run(chunk.table->layout, rows,
                     [&](const wire::RowRun& run, const std::byte* source) {
                       sum += squares(source, (run.end - run.begin) / element_bytes);
                     });
  uint64_t bytes = 0;
  for (uint64_t left = rows.fragments; left != 0; left &= left - 1) {
    bytes += wire::fragment_length(chunk.wire_bytes, shard.fragment_bytes,
                                   static_cast<uint32_t>(__builtin_ctzll(left)));
  }
  session.squares.add(parsed.header.round, sum, bytes / element_bytes, shard.element_count);
}

}  // namespace

bool TablePushes::read(const Chunk& chunk, const wire::Parsed& parsed, wire::RowsView& rows) const {
  PBOX_DCHECK(chunk.table != nullptr);
  const wire::Header& header = parsed.header;
  PBOX_DCHECK(header.type() == wire::PacketType::kPush);
  if (header.fragment >= chunk.fragment_count) {
    context_.counters.add(Counter::kRejectFragment);
    return false;
  }
  if ((header.dtype_scale & 15) != static_cast<uint32_t>(chunk.dtype)) {
    context_.counters.add(Counter::kRejectDtype);
    return false;
  }
  if (wire::read_push(chunk.table->layout, parsed, rows)) return true;
  context_.counters.add(Counter::kRejectLength);
  return false;
}

void TablePushes::add(JobShard& shard, Session& session, Chunk& chunk, const wire::Parsed& parsed,
                      const wire::RowsView& rows) const {
  const uint32_t round = chunk.open_round();
  PBOX_DCHECK(wire::round_distance(parsed.header.round, round) <= 0);
  PBOX_DCHECK(!shard.receives_weights(chunk));
  PBOX_DCHECK(chunk.accumulator[round & 1] != nullptr && !shard.keeps_pushes(chunk));
  measure_rows(kernels_, shard, session, chunk, parsed, rows);
  const uint32_t element_bytes = wire::dtype_bytes(chunk.dtype);
  const auto add = gradient_kernel(kernels_, shard.guard, chunk.dtype, false);
  bool are_sound = true;
  wire::for_each_run(
      chunk.table->layout, rows, [&](const wire::RowRun& run, const std::byte* source) {
        PBOX_DCHECK(run.end <= chunk.wire_bytes);
        are_sound &= add(chunk.accumulator[round & 1] + run.begin / element_bytes, source,
                         (run.end - run.begin) / element_bytes, shard.value_limit);
        for (uint32_t row = run.first_row; row < run.end_row; ++row) chunk.table->touch(round, row);
      });
  if (!are_sound) [[unlikely]]
    note_unsound(shard, session, chunk, round, context_.now_ns);
}

void TablePushes::apply(JobShard& shard, Session& session, Chunk& chunk, const wire::Parsed& parsed,
                        const wire::RowsView& rows) const {
  measure_rows(kernels_, shard, session, chunk, parsed, rows);
  for (uint64_t left = rows.fragments; left != 0; left &= left - 1) {
    ++chunk.sync->updates[__builtin_ctzll(left)];
  }
  chunk.table->begin_update();
  const uint32_t element_bytes = wire::dtype_bytes(chunk.dtype);
  const auto take = gradient_kernel(kernels_, shard.guard, chunk.dtype, true);
  bool are_sound = true;
  wire::for_each_run(
      chunk.table->layout, rows, [&](const wire::RowRun& run, const std::byte* source) {
        PBOX_DCHECK(run.end <= chunk.wire_bytes);
        for (uint32_t row = run.first_row; row < run.end_row; ++row) chunk.table->note_change(row);
        for (uint32_t begin = run.begin; begin < run.end;) {
          const uint32_t fragment = begin / shard.fragment_bytes;
          const uint32_t end = std::min(run.end, (fragment + 1) * shard.fragment_bytes);
          const size_t elements = (end - begin) / element_bytes;
          are_sound &= take(shard.gradient, source, elements, shard.value_limit);
          step_on_arrival(shard, chunk, fragment, begin / element_bytes, elements);
          source += end - begin;
          begin = end;
        }
      });
  if (!are_sound) [[unlikely]]
    note_unsound(shard, session, chunk, parsed.header.round, context_.now_ns);
}

}  // namespace pbox::pipeline
