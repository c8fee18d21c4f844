#include "pipeline/sync/rules.h"

#include <cmath>

#include "base/check.h"
#include "base/rng.h"

namespace pbox::sync {

using wire::SyncModel;

// FNV-1a, because std::hash may differ between the builds of two boxes.
uint64_t seed_of(std::string_view job) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const char byte : job) hash = (hash ^ static_cast<uint8_t>(byte)) * 0x100000001b3ull;
  return hash;
}

double draw(uint64_t seed, uint32_t rank, uint64_t round) {
  const uint64_t worker = Rng(seed ^ uint64_t{rank} << 32).next();
  return Rng(worker ^ round).unit();
}

bool blocks(const wire::SyncSpec& spec, const Reader& reader) {
  PBOX_DCHECK(wire::applies_on_arrival(spec.model) && spec.model != SyncModel::kAdaptive);
  PBOX_DCHECK(reader.significance >= 0 && reader.significance <= 1);
  PBOX_DCHECK(reader.round <= reader.fastest && reader.slowest <= reader.fastest + 1);
  if (waits_for_clock(spec)) return reader.slowest + spec.staleness <= reader.round;
  if (spec.model == SyncModel::kAsp) return false;
  // The lead is -1 once every rank has pushed the round, so this compares without a subtraction.
  if (reader.round < reader.slowest + spec.staleness) return false;
  if (spec.model == SyncModel::kSsp) return true;
  if (reader.round != reader.fastest) return false;
  double probability = static_cast<double>(spec.probability);
  if (spec.model == SyncModel::kDpssp) {
    const uint64_t lead = reader.round - reader.slowest;
    if (spec.by_gradient) probability *= static_cast<double>(reader.significance);
    probability /= 1 + std::exp(static_cast<double>(spec.staleness) - static_cast<double>(lead));
  }
  return draw(reader.seed, reader.rank, reader.round) <= probability;
}

uint64_t awaited_clock(const wire::SyncSpec& spec, uint64_t round, uint64_t slowest) {
  PBOX_DCHECK(spec.staleness <= wire::kStalenessMax);
  if (waits_for_clock(spec)) return round + 1 < spec.staleness ? 0 : round + 1 - spec.staleness;
  return spec.release == wire::Release::kLazy ? round + 1 : slowest + 1;
}

bool releases(const wire::SyncSpec& spec, uint64_t round, uint64_t slowest) {
  PBOX_DCHECK(wire::applies_on_arrival(spec.model));
  const bool is_soft = !waits_for_clock(spec) && spec.release == wire::Release::kSoft;
  return is_soft || slowest >= awaited_clock(spec, round, slowest);
}

bool may_follow(const wire::SyncSpec& former, const wire::SyncSpec& next) {
  if (former == next) return true;
  if (reads_cached(former) || reads_cached(next)) return false;
  if (former.model == SyncModel::kDrop) return next.model == SyncModel::kDrop;
  return wire::applies_on_arrival(former.model) && wire::applies_on_arrival(next.model);
}

}  // namespace pbox::sync
