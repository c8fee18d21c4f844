// Claims on snapshots: one box at a time takes a snapshot of a job. The key belongs to the session
// of the box, so the claim of a lost box ends with its lease.
#include <utility>

#include "appliance/cluster/part_maps.h"
#include "appliance/cluster/part_maps_detail.h"

namespace pbox::cluster {
namespace {

constexpr char kSnapshots[] = "snapshots/";

}  // namespace

void PartMaps::claim_snapshot(const std::string& job, std::function<void(const Status&)> done) {
  const std::string key = kSnapshots + job;
  const auto on_read = [this, alive = alive_, job, key, done](const Result<Snapshot>& snapshot) {
    if (!*alive) return;
    if (!snapshot) return done(snapshot.error());
    int64_t revision = 0;
    for (const KeyValue& entry : snapshot->entries) {
      if (entry.key != key) continue;
      // This box takes one snapshot of a job at a time, so its own claim is left from an earlier
      // one whose release failed.
      if (entry.session != store_.session()) {
        return done(unavailable("box " + entry.value + " takes a snapshot of job '" + job + "'"));
      }
      revision = entry.mod_revision;
    }
    store_.commit({.conditions = {{key, revision}},
                   .puts = {{.key = key, .value = options_.self, .ephemeral = true}},
                   .deletes = {}},
                  [this, alive, job, done](const Result<Outcome>& outcome) {
                    if (!*alive) return;
                    if (!outcome) return done(outcome.error());
                    if (!outcome->committed) {
                      return done(unavailable("another box takes a snapshot of job '" + job + "'"));
                    }
                    claimed_[job] = outcome->revision;
                    done(ok_status());
                  });
  };
  store_.get(key, on_read);
}

// If this fails, the next claim of this box finds its own key.
void PartMaps::release_snapshot(const std::string& job) {
  const auto claimed = claimed_.find(job);
  if (claimed == claimed_.end()) return;
  const std::string key = kSnapshots + job;
  store_.commit({.conditions = {{key, claimed->second}}, .puts = {}, .deletes = {key}},
                [](const Result<Outcome>&) {});
  claimed_.erase(claimed);
}

}  // namespace pbox::cluster
