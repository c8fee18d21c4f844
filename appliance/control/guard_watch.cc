#include "appliance/control/guard_watch.h"

#include <string>

#include "appliance/control/tensors_by_chunk.h"
#include "base/clock.h"

namespace pbox::control {
namespace {

using Severity = RegistryEvent::Severity;

// Interval at which the log names a rank whose values stay unsound.
constexpr uint64_t kLogAgainNs = 60 * kNanosPerSecond;

// The unsound fragments of a rank on all pipelines, and the place of the newest.
struct Found {
  uint64_t fragments = 0;
  uint64_t newest_ns = 0;
  uint64_t chunk_round = 0;
};

Found found_of(const Job& job, uint32_t rank) {
  Found found;
  for (const auto& shard : job.shards().all()) {
    const pipeline::Session& session = shard->sessions()[rank];
    found.fragments += session.nonfinite.get();
    if (session.nonfinite_at_ns.get() < found.newest_ns) continue;
    found.newest_ns = session.nonfinite_at_ns.get();
    found.chunk_round = session.nonfinite_chunk_round.get();
  }
  return found;
}

std::string in_place(const Job& job, uint64_t chunk_round) {
  const PlaceView place = place_of(chunk_round, TensorsByChunk(job.spec()));
  return "tensor '" + place.tensor + "', round " + std::to_string(place.round);
}

}  // namespace

void GuardWatch::on_tick(Job& job) {
  if (job.spec().is_backup) return;  // a copy of weights and state is not a gradient
  log_new(job);
  for (const auto& shard : job.shards().all()) {
    const uint32_t rank = shard->rejected_rank();
    if (rank == pipeline::kNoRank) continue;
    const uint64_t where = shard->sessions()[rank].nonfinite_chunk_round.get();
    return owner_.fail(
        job, {ErrorCode::kInvalidArgument,
              job.spec().title() + ": rank " + std::to_string(rank) + " pushed " +
                  job.spec().unsound_value() + " in " + in_place(job, where) +
                  ", which the job's guard rejects; find the cause on that rank, or set guard "
                  "zero or flag"});
  }
}

void GuardWatch::log_new(const Job& job) {
  std::vector<Logged>& logged = logged_[key_of(job.spec())];
  logged.resize(job.members().size());
  for (uint32_t rank = 0; rank < logged.size(); ++rank) {
    const Found found = found_of(job, rank);
    Logged& before = logged[rank];
    if (found.fragments == before.fragments) continue;
    if (before.fragments > 0 && context_.now_ns < before.at_ns + kLogAgainNs) continue;
    context_.note(Severity::kWarning, "unsound_values",
                  job.spec().title() + ": rank " + std::to_string(rank) + " pushed " +
                      job.spec().unsound_value() + " in " + in_place(job, found.chunk_round) +
                      " (fragments since the last report: " +
                      std::to_string(found.fragments - before.fragments) + ")",
                  job.spec().name);
    before = {found.fragments, context_.now_ns};
  }
}

}  // namespace pbox::control
