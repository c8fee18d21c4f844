// Converts a consistency model to a message of the control connection.
#pragma once

#include "nic/wire/control.pb.h"
#include "nic/wire/sync.h"

namespace pbox::wire {

inline proto::Sync sync_message(const SyncSpec& spec) {
  proto::Sync sync;
  sync.set_model(static_cast<uint32_t>(spec.model));
  sync.set_staleness(spec.staleness);
  sync.set_probability(spec.probability);
  sync.set_release(static_cast<uint32_t>(spec.release));
  sync.set_reads(static_cast<uint32_t>(spec.reads));
  sync.set_quorum(spec.quorum);
  sync.set_staleness_min(spec.staleness_min);
  sync.set_by_gradient(spec.by_gradient);
  sync.set_grace_ms(spec.grace_ms);
  sync.set_counts_late(spec.counts_late);
  return sync;
}

}  // namespace pbox::wire
