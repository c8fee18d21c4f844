#include "worker/abi/check_options.h"

#include <cmath>
#include <string>

#include "nic/wire/sync.h"

namespace pbox::worker {

Status check_policy(pbox_priority_policy policy) {
  if (policy >= PBOX_PRIORITY_EXPLICIT && policy <= PBOX_PRIORITY_FIFO) return ok_status();
  return invalid("priority_policy " + std::to_string(policy) +
                 " is unknown: set PBOX_PRIORITY_EXPLICIT, PBOX_PRIORITY_FORWARD_ORDER or "
                 "PBOX_PRIORITY_FIFO");
}

Status check_compression(pbox_compression compression) {
  if (compression >= PBOX_COMPRESSION_NONE && compression <= PBOX_COMPRESSION_AUTO) {
    return ok_status();
  }
  return invalid("compression " + std::to_string(compression) +
                 " is unknown: set PBOX_COMPRESSION_NONE, PBOX_COMPRESSION_Q8, "
                 "PBOX_COMPRESSION_Q4 or PBOX_COMPRESSION_AUTO");
}

namespace {

// Returns an error for the first option whose value is not allowed.
Status check_choices(const pbox_options& options) {
  if (options.world_size == 0 || options.rank >= options.world_size) {
    return invalid("rank " + std::to_string(options.rank) + " must be below world_size " +
                   std::to_string(options.world_size));
  }
  if (options.min_world_size > options.world_size) {
    return invalid("min_world_size " + std::to_string(options.min_world_size) +
                   " must be at most world_size " + std::to_string(options.world_size) +
                   " (0: the job begins with all ranks)");
  }
  if (options.mode < PBOX_MODE_AGGREGATE || options.mode > PBOX_MODE_COLLECTIVE) {
    return invalid("mode " + std::to_string(options.mode) +
                   " is unknown: set PBOX_MODE_AGGREGATE, PBOX_MODE_OPTIMIZE or "
                   "PBOX_MODE_COLLECTIVE");
  }
  if (options.reduction != PBOX_SUM && options.reduction != PBOX_MEAN) {
    return invalid("reduction " + std::to_string(options.reduction) +
                   " is unknown: set PBOX_SUM or PBOX_MEAN");
  }
  if (options.weighted > 1) {
    return invalid("weighted " + std::to_string(options.weighted) + " must be 0 or 1");
  }
  if (options.recovery != PBOX_RECOVERY_COPY && options.recovery != PBOX_RECOVERY_NONE) {
    return invalid("recovery " + std::to_string(options.recovery) +
                   " is unknown: set PBOX_RECOVERY_COPY or PBOX_RECOVERY_NONE");
  }
  if (options.on_worker_lost < PBOX_LOST_WAIT || options.on_worker_lost > PBOX_LOST_ABORT) {
    return invalid("on_worker_lost " + std::to_string(options.on_worker_lost) +
                   " is unknown: set PBOX_LOST_WAIT, PBOX_LOST_PARTIAL or PBOX_LOST_ABORT");
  }
  if (options.rejoin > 1) {
    return invalid("rejoin " + std::to_string(options.rejoin) + " must be 0 or 1");
  }
  if (const Status known = check_policy(options.priority_policy); !known) return known;
  if (options.delivery != PBOX_DELIVERY_BROADCAST && options.delivery != PBOX_DELIVERY_PULL) {
    return invalid("delivery " + std::to_string(options.delivery) +
                   " is unknown: set PBOX_DELIVERY_BROADCAST or PBOX_DELIVERY_PULL");
  }
  if (options.numerics != PBOX_NUMERICS_FAST && options.numerics != PBOX_NUMERICS_ORDERED) {
    return invalid("numerics " + std::to_string(options.numerics) +
                   " is unknown: set PBOX_NUMERICS_FAST or PBOX_NUMERICS_ORDERED");
  }
  if (options.guard < PBOX_GUARD_FLAG || options.guard > PBOX_GUARD_ZERO) {
    return invalid("guard " + std::to_string(options.guard) +
                   " is unknown: set PBOX_GUARD_FLAG, PBOX_GUARD_REJECT or PBOX_GUARD_ZERO");
  }
  if (!std::isfinite(options.guard_max_abs) || options.guard_max_abs < 0) {
    return invalid("guard_max_abs " + std::to_string(options.guard_max_abs) +
                   " must be finite and >= 0");
  }
  if (const Status known = check_compression(options.compression); !known) return known;
  if (options.compression == PBOX_COMPRESSION_AUTO && options.mode == PBOX_MODE_OPTIMIZE) {
    return invalid(
        "PBOX_COMPRESSION_AUTO needs PBOX_MODE_AGGREGATE: in PBOX_MODE_OPTIMIZE a tensor "
        "cannot change its form; set PBOX_COMPRESSION_Q8 or PBOX_COMPRESSION_NONE");
  }
  if (options.compression != PBOX_COMPRESSION_NONE && options.mode == PBOX_MODE_COLLECTIVE) {
    return invalid(
        "compression needs PBOX_MODE_AGGREGATE or PBOX_MODE_OPTIMIZE; set "
        "PBOX_COMPRESSION_NONE");
  }
  if (options.replicas > 1) {
    return invalid("replicas " + std::to_string(options.replicas) + " must be 0 or 1");
  }
  if (options.backup > 2) {
    return invalid("backup " + std::to_string(options.backup) + " must be 0, 1 or 2");
  }
  return ok_status();
}

// Returns an error for the first field of the consistency model whose value is not allowed. The box
// checks which options fit together.
Status check_sync(const pbox_options& options) {
  if (options.sync < PBOX_SYNC_BSP || options.sync >= wire::kSyncModelCount) {
    return invalid("sync " + std::to_string(options.sync) +
                   " is unknown: set one of PBOX_SYNC_BSP to PBOX_SYNC_ADAPTIVE");
  }
  if (options.staleness > wire::kStalenessMax) {
    return invalid("staleness " + std::to_string(options.staleness) + " must be at most " +
                   std::to_string(wire::kStalenessMax) + "; PBOX_SYNC_ASP has no bound");
  }
  if (!(options.sync_probability > 0 && options.sync_probability <= 1)) {
    return invalid("sync_probability " + std::to_string(options.sync_probability) +
                   " must be in (0, 1]");
  }
  if (options.release != PBOX_RELEASE_SOFT && options.release != PBOX_RELEASE_LAZY) {
    return invalid("release " + std::to_string(options.release) +
                   " is unknown: set PBOX_RELEASE_SOFT or PBOX_RELEASE_LAZY");
  }
  if (options.reads != PBOX_READS_FRESH && options.reads != PBOX_READS_CACHED) {
    return invalid("reads " + std::to_string(options.reads) +
                   " is unknown: set PBOX_READS_FRESH or PBOX_READS_CACHED");
  }
  if (options.quorum > options.world_size) {
    return invalid("quorum " + std::to_string(options.quorum) + " must be at most world_size " +
                   std::to_string(options.world_size));
  }
  if (options.grace_ms > wire::kGraceMsMax && options.grace_ms != PBOX_GRACE_AUTO) {
    return invalid("grace_ms " + std::to_string(options.grace_ms) + " must be at most " +
                   std::to_string(wire::kGraceMsMax) + ", or PBOX_GRACE_AUTO");
  }
  if (options.late_pushes != PBOX_LATE_DROP && options.late_pushes != PBOX_LATE_NEXT) {
    return invalid("late_pushes " + std::to_string(options.late_pushes) +
                   " is unknown: set PBOX_LATE_DROP or PBOX_LATE_NEXT");
  }
  return ok_status();
}

}  // namespace

Status check_options(const pbox_options& options) {
  if (Status sound = check_choices(options); !sound) return sound;
  return check_sync(options);
}

}  // namespace pbox::worker
