// The checks of a run: no rank waits for too long, and the final state is right.
#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "base/clock.h"
#include "nic/wire/chunk_layout.h"
#include "tests/sim/violation.h"
#include "tests/sim/world.h"
#include "worker/protocol/rtt_estimator.h"

namespace pbox::sim {
namespace {

constexpr uint64_t kWatchNs = 250 * kNanosPerMilli;
// Limit for an operation after the faults: 20 times the largest time-out, plus a quarter for its
// jitter.
constexpr uint64_t kCompletesWithinNs = 20 * worker::RttEstimator::kCapNs * 5 / 4;
// The longest time to find a box, from one attempt to the answer to the next.
constexpr uint64_t kReconnectsWithinNs = 10 * kNanosPerSecond;
// A job that lacks a rank waits for it until the time-out of the join.
constexpr uint64_t kJoinsWithinNs = 65 * kNanosPerSecond;
// Limits in a cluster: from the loss of a box to a map without it, and from the end of a job to the
// end of its map.
constexpr uint64_t kMovesWithinNs = 20 * kNanosPerSecond;
constexpr uint64_t kForgetsMapsWithinNs =
    std::chrono::nanoseconds(kDeleteMapsAfter).count() + 20 * kNanosPerSecond;

}  // namespace

uint64_t World::limit_ns(const JobModel& job) const {
  uint64_t limit_ns = kCompletesWithinNs + 3 * options_.dead_after_ns + kReconnectsWithinNs;
  // A rank may have to wait until the rank that is furthest behind has done all its rounds.
  if (job.options.straggling != Straggling::kNone) {
    limit_ns += 2 * job.options.rounds * job.options.longest_think_ns();
  }
  if (options_.has_cluster) limit_ns += kMovesWithinNs;
  if (options_.has_levels) limit_ns *= 2;  // a round waits for both levels
  // A part waits until the disk has read the snapshot with which it begins.
  if (job.options.has_snapshots) limit_ns += 2 * SimSnapshots::kLongestNs;
  if (job.options.has_copy) limit_ns += kReconnectsWithinNs;  // possible backup boxes are asked
  // A rank that was away when its job ended joins it anew, and waits there for the others.
  const bool may_be_alone = job.options.disagreement && job.disturbed;
  if (job.may_fail || may_be_alone || !job.lost.empty()) {
    limit_ns += kJoinsWithinNs +
                (job.options.lost_timeout_ms() + job.options.recover_timeout_ms()) * kNanosPerMilli;
  }
  return limit_ns;
}

// Checks regularly that no rank waits longer than its limit once all faults have ended, and that
// boxes keep nothing for long once all jobs are over.
void World::watch() {
  queue_.after(kWatchNs, [this] { watch(); });
  if (healed_ns_ == UINT64_MAX) return;
  uint64_t longest_ns = 0;
  // Time for which boxes keep state that is no longer asked for, or that a disk is writing.
  uint64_t kept_ns = options_.has_snapshots ? 3 * SimSnapshots::kLongestNs : 0;
  for (const auto& job : jobs_) {
    longest_ns = std::max(longest_ns, limit_ns(*job));
    const bool keeps = job->options.may_move && job->options.mode == pipeline::Mode::kOptimize;
    const uint64_t lost_ns = job->options.lost_timeout_ms() * kNanosPerMilli;
    if (options_.has_cluster) kept_ns = std::max(kept_ns, kForgetsMapsWithinNs);
    if (keeps) kept_ns = std::max(kept_ns, 2 * (lost_ns + options_.dead_after_ns));
  }
  for (const auto& worker : workers_) {
    const uint64_t began_ns = worker->waits_since_ns();
    if (began_ns == UINT64_MAX) continue;
    const uint64_t waited_ns = queue_.now_ns() - std::max(began_ns, healed_ns_);
    require(waited_ns <= limit_ns(worker->job()), [&] {
      return "liveness: " + worker->job().title + " rank " + std::to_string(worker->rank()) +
             " has waited for " + std::to_string(waited_ns / kNanosPerMilli) +
             " ms since all faults ended. It waits for:" +
             (worker->joined() ? worker->application()->waiting_for() : " its session");
    });
  }
  const bool all_over = std::all_of(workers_.begin(), workers_.end(),
                                    [](const auto& worker) { return worker->over(); });
  all_over_ns_ = all_over ? std::min(all_over_ns_, queue_.now_ns()) : UINT64_MAX;
  require(!all_over || queue_.now_ns() - all_over_ns_ <= longest_ns + kept_ns, [&] {
    uint64_t memory_bytes = 0;
    for (const auto& box : boxes_) memory_bytes += box->registry().memory_taken_bytes();
    return "all jobs are over, but boxes keep " + std::to_string(memory_bytes) + " bytes, " +
           std::to_string(cluster_.map_count()) + " part maps are left, " +
           std::to_string(control_.open_count()) + " control connections are open, and " +
           (network_.empty() ? "no packet is" : "packets are") + " in flight";
  });
}

bool World::over() const {
  return network_.empty() && control_.open_count() == 0 && cluster_.map_count() == 0 &&
         std::all_of(workers_.begin(), workers_.end(),
                     [](const auto& worker) { return worker->over(); }) &&
         std::all_of(boxes_.begin(), boxes_.end(), [](const auto& box) {
           return box->up() && box->registry().memory_taken_bytes() == 0;
         });
}

void World::check_everything() {
  network_.check_conservation();
  for (auto& box : boxes_) {
    if (box->up()) box->check_all();
  }
}

// Returns whether credit bounds what arrives in the rings. It does not if some worker's credit is
// less than a chunk, because that worker still sends one chunk.
bool World::rings_hold_all() const {
  std::vector<uint32_t> sessions(options_.boxes);
  for (const JobOptions& job : options_.jobs) sessions[job.box] += job.workers;
  return std::all_of(options_.jobs.begin(), options_.jobs.end(), [&](const JobOptions& job) {
    uint64_t ring_bytes = options_.ring_bytes;
    if (options_.ring_slots > 0) {
      const uint32_t fragment_bytes = wire::fragment_bytes_for_mtu(job.path_mtu, false);
      ring_bytes = std::min<uint64_t>(ring_bytes, uint64_t{options_.ring_slots} * fragment_bytes);
    }
    return ring_bytes * 3 / 4 / sessions[job.box] >= job.chunk_bytes;
  });
}

// Checks that a job that is alone in a cluster is not refused if the largest box can take it, as
// long as no box is lost.
void World::check_refusal(const Worker& worker) const {
  constexpr EpisodeKind kHarmless[] = {EpisodeKind::kClog,      EpisodeKind::kDropFragment,
                                       EpisodeKind::kSmallRing, EpisodeKind::kSlowReader,
                                       EpisodeKind::kOutsider,  EpisodeKind::kMovePart};
  const bool is_well =
      std::all_of(options_.episodes.begin(), options_.episodes.end(), [&](const Episode& episode) {
        return std::find(std::begin(kHarmless), std::end(kHarmless), episode.kind) !=
               std::end(kHarmless);
      });
  if (!options_.has_cluster || options_.jobs.size() > 1 || !is_well || !worker.failure()) return;
  const std::string& why = worker.failure()->message;
  const size_t needs = why.find(" needs ");
  if (worker.failure()->code != ErrorCode::kResourceExhausted || needs == std::string::npos) return;
  const uint64_t bytes = std::strtoull(why.c_str() + needs + 7, nullptr, 10);
  const uint32_t largest = options_.boxes - 1;
  // The refusal may name the memory of the arenas alone, which is more than a third of all.
  constexpr uint64_t kOfAll = 3;
  require(kOfAll * bytes > options_.arena_of(largest), [&] {
    return "room: " + worker.job().title + " is refused although box " + std::to_string(largest) +
           " has room: " + why;
  });
}

// Checks that the error of a job that its guard ends names the push with the unsound value.
void World::check_rejection(const Worker& worker) const {
  const auto rejected = worker.job().rejected();
  if (!rejected || !worker.failure()) return;
  const std::string& why = worker.failure()->message;
  if (why.find("the job's guard rejects") == std::string::npos) return;
  const std::string rank = "rank " + std::to_string(rejected->rank) + " pushed ";
  const std::string round = ", round " + std::to_string(rejected->round) + ",";
  require(why.find(rank) != std::string::npos && why.find(round) != std::string::npos, [&] {
    return "guard: another push is blamed than the rejected one of rank " +
           std::to_string(rejected->rank) + round + " but: " + why;
  });
}

// Checks that every rank ends with an error that names the rank whose calls differ from those of
// the others. Other jobs must never end with that error.
void World::check_disagreement(const Worker& worker) {
  const JobModel& job = worker.job();
  if (job.options.rogue) return;
  const auto& disagreement = job.options.disagreement;
  const bool is_found =
      worker.failure() && worker.failure()->code == ErrorCode::kMismatch &&
      worker.failure()->message.find("the ranks disagree about an operation") != std::string::npos;
  if (!disagreement) {
    require(!is_found, [&] {
      return "mismatch: " + job.title +
             " ends although its ranks make the same calls: " + worker.failure()->message;
    });
    return;
  }
  const auto who = [&] { return job.title + " rank " + std::to_string(worker.rank()); };
  require(worker.failure().has_value(),
          [&] { return "mismatch: " + who() + " ends well although the ranks disagree"; });
  // Something else may end the job first, or keep the reason from a rank.
  require(is_found || job.may_fail || job.disturbed, [&] {
    return "mismatch: " + who() + " fails for another reason than the disagreement of the ranks: " +
           worker.failure()->message;
  });
  if (!is_found) return;
  const std::string& why = worker.failure()->message;
  const std::string name = "rank " + std::to_string(disagreement->rank);
  // A rank that the box has lost meanwhile cannot say at which operation it is.
  const bool is_silent = (job.may_fail || job.disturbed) &&
                         why.find(name + " has not reported its operation") != std::string::npos;
  require(is_silent || why.find(name + " is at ") != std::string::npos, [&] {
    return "mismatch: " + who() + " is not told that " + name + " is at another operation: " + why;
  });
}

void World::check_end() {
  check_everything();
  for (const auto& worker : workers_) {
    const JobModel& job = worker->job();
    check_disagreement(*worker);
    const bool may_fail =
        job.may_fail || job.lost.contains(worker->rank()) || job.options.disagreement.has_value();
    require(!worker->failure() || may_fail, [&] {
      return worker->job().title + " rank " + std::to_string(worker->rank()) +
             " failed without cause: " + worker->failure()->message;
    });
    require(worker->failure() || worker->application()->done(), "the simulator stopped too early");
    check_rejection(*worker);
    check_refusal(*worker);
  }
  if (snapshots_) snapshots_->check_end();
  const bool quiet = options_.faults_end_ns == 0 && rings_hold_all();
  require(!quiet || counts_.get(Fault::kRingOverflow) == 0,
          "credit: a receive ring overflowed although the rack is quiet");
}

}  // namespace pbox::sim
