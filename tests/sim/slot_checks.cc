#include "tests/sim/slot_checks.h"

#include <algorithm>
#include <cstring>

#include "tests/sim/violation.h"

namespace pbox::sim {

void check_slot_sum(const JobModel& job, const pipeline::JobShard& shard,
                    const pipeline::Chunk& chunk, uint32_t fragment) {
  const uint64_t bit = uint64_t{1} << fragment;
  const bool is_copied = chunk.copy_rank != pipeline::kNoRank;
  const auto piece = job.collectives->agreed_piece(chunk.id, chunk.rounds_finished);
  if (is_copied || !piece || (chunk.claimed_any & bit) == 0) return;
  if (job.is_rejected(chunk.id, chunk.open_round())) return;  // the job is about to end
  uint32_t ranks = 0;
  for (uint32_t rank = 0; rank < job.options.workers; ++rank) {
    if ((chunk.claimed[rank] & bit) != 0) ranks |= 1u << rank;
  }
  const uint32_t bytes = piece->elements * wire::dtype_bytes(piece->options.dtype);
  const uint32_t first = fragment * shard.fragment_bytes;
  require(first < bytes, [&] {
    return place(job, chunk, chunk.rounds_finished) + ": a fragment beyond the operation has data";
  });
  const pipeline::ShapedRound& round = chunk.shaped[chunk.open_round() & 1];
  const auto expected = job.collectives->combined(*piece, ranks, first,
                                                  std::min(shard.fragment_bytes, bytes - first));
  const auto* memory =
      reinterpret_cast<const std::byte*>(chunk.accumulator[chunk.open_round() & 1]);
  require(
      std::memcmp(memory + size_t{first} * round.widening(), expected.data(), expected.size()) == 0,
      [&] {
        return place(job, chunk, chunk.rounds_finished) + ", fragment " + std::to_string(fragment) +
               ": does not combine the ranks of mask " + std::to_string(ranks) + ", each once";
      });
}

void check_slot_result(const JobModel& job, const pipeline::Chunk& chunk) {
  const uint64_t round = chunk.rounds_finished - 1;
  const auto piece = job.collectives->agreed_piece(chunk.id, round);
  require(piece.has_value(), [&] {
    return place(job, chunk, round) + ": finished although the ranks disagree about it";
  });
  require(!job.is_rejected(chunk.id, static_cast<uint32_t>(round)), [&] {
    return place(job, chunk, round) +
           ": there is a result, although the guard rejects a push to it";
  });
  const auto& expected = job.collectives->result(*piece);
  const uint32_t bytes = pipeline::finished_shape(chunk).result_bytes;
  require(bytes == expected.size(), [&] {
    return place(job, chunk, round) + ", at the box: the result has " + std::to_string(bytes) +
           " bytes, not " + std::to_string(expected.size());
  });
  require(std::equal(expected.begin(), expected.end(), chunk.result[round & 1]), [&] {
    return place(job, chunk, round) + ", at the box: the result differs from the oracle's";
  });
}

void check_slot_receiver(const JobModel& job, const pipeline::JobShard& shard,
                         const wire::Header& header) {
  if (header.type() != wire::PacketType::kResult) return;
  for (const auto& session : shard.sessions()) {
    if ((session.spi | wire::kSpiToWorker) != header.spi) continue;
    const auto piece = job.collectives->agreed_piece(header.chunk, header.round);
    require(piece && job.collectives->is_sent_to(*piece, session.rank), [&] {
      return job.title + " chunk " + std::to_string(header.chunk) + " round " +
             std::to_string(header.round) + ": its result is not for rank " +
             std::to_string(session.rank);
    });
  }
}

}  // namespace pbox::sim
