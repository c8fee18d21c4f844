#include "tests/sim/world.h"

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "tests/sim/violation.h"

namespace pbox::sim {
namespace {

// Least number of events between two full checks, so that these stay cheap compared with the rest.
constexpr uint64_t kEventsPerFullCheck = 2'000;
constexpr uint64_t kEventsPerAttack = 100;
// Less than the time for which a box waits for another box's answer.
constexpr uint64_t kStateAsksForNs = 1'500 * kNanosPerMilli;

}  // namespace

World::World(const Options& options, std::ostream* trace, bool checks,
             std::shared_ptr<SnapshotFolder> snapshots)
    : options_(options),
      network_(queue_, options_, counts_, checks),
      control_(queue_, network_, options_.latency_ns),
      cluster_(queue_, options_),
      keys_(options.seed, checks),
      snapshots_(std::move(snapshots)),
      rack_{queue_,   network_, control_, options_,         counts_, jobs_,
            cluster_, keys_,    meter_,   snapshots_.get(), trace,   checks},
      rng_(options.seed ^ 0x776f726c64ull),
      forger_(options.seed) {
  if (options_.attack_bursts > 0) {
    network_.set_tap([this](const Packet& packet) { overhear(packet); });
  }
  HostId free_host = options_.boxes;
  for (uint32_t index = 0; index < options_.jobs.size(); ++index) {
    const JobOptions& job = options_.jobs[index];
    const HostId host = job.part == 0 ? free_host : jobs_[job.number]->first_host;
    jobs_.push_back(std::make_unique<JobModel>(options_.seed, index, job, host, checks));
    if (job.part == 0) free_host += job.workers;
    for (const TensorOptions& tensor : job.tensors) events_per_full_check_ += tensor.elements;
  }
  events_per_full_check_ = std::max(events_per_full_check_, kEventsPerFullCheck);
  for (HostId box = 0; box < options_.boxes; ++box) {
    boxes_.push_back(std::make_unique<Box>(rack_, box));
  }
  cluster_.set_on_move([this](const auto& job, uint32_t part, HostId from, HostId to) {
    on_move(job, part, from, to);
  });
  cluster_.set_has([this](HostId box, const std::string& job, uint32_t part) {
    return boxes_[box]->has_part(job, part);
  });
  for (auto& job : jobs_) {
    if (job->options.rogue) rogues_.push_back(std::make_unique<Rogue>(rack_, *job));
    for (uint32_t rank = job->options.rogue ? 1 : 0; rank < job->options.workers; ++rank) {
      workers_.push_back(
          std::make_unique<Worker>(rack_, process_on(job->first_host + rank), *job, rank));
    }
  }
}

std::shared_ptr<Process> World::process_on(HostId host) {
  std::shared_ptr<Process>& process = processes_[host];
  if (process == nullptr) {
    process = std::make_shared<Process>(rack_, host);
    control_.attach(host, *process);
  }
  return process;
}

Outcome World::run() {
  const bool checks = rack_.checks;
  Outcome outcome;
  try {
    if (options_.has_former_run) run_before();
    for (auto& box : boxes_) box->start();
    form_cluster();
    begin_ns_ = queue_.now_ns();
    for (auto& worker : workers_) {
      const auto& arrivals_ns = worker->job().options.arrivals_ns;
      const uint64_t together_ns = rng_.below(2 * kNanosPerMilli);
      queue_.after(arrivals_ns.empty() ? together_ns : arrivals_ns[worker->rank()],
                   [&worker] { worker->start(); });
    }
    for (auto& rogue : rogues_) rogue->start();
    schedule_faults();
    watch();
    if (observe_) observe_again();
    while (!is_stopped_ && !over() && queue_.step()) {
      require(queue_.count() < options_.events_max, [this] {
        return "the run did not end after " + std::to_string(options_.events_max) + " events";
      });
      if (checks && queue_.count() % events_per_full_check_ == 0) check_everything();
      if (options_.attack_bursts > 0 && queue_.count() % kEventsPerAttack == 0) attack();
    }
    if (checks) check_end();
  } catch (const Violation& violation) {
    outcome.violation = violation.what();
  }
  outcome.faults = counts_;
  outcome.events = queue_.count();
  outcome.simulated_ns = queue_.now_ns() - begin_ns_;
  for (const auto& worker : workers_) {
    outcome.work_ns = std::max(outcome.work_ns, worker->work_ns());
    outcome.began_ns = std::min(outcome.began_ns, worker->began_ns());
    outcome.first_round_ns = std::max(outcome.first_round_ns, worker->first_round_ns());
    if (worker->application()) outcome.rounds += worker->application()->rounds_completed();
    outcome.jobs_failed += worker->rank() == 0 && worker->failure().has_value();
  }
  for (const auto& box : boxes_) outcome.pulls += box->pulls_received();
  outcome.cables = network_.cable_uses();
  outcome.trace_hash = network_.trace_hash() ^ queue_.count();
  outcome.forgeries = forger_.counts();
  outcome.forged_for_boxes = forged_for_boxes_;
  outcome.forged_for_workers = forged_for_workers_;
  outcome.key_updates = keys_.updates();
  return outcome;
}

// Carries out the former run. Only its snapshots are left afterwards.
void World::run_before() {
  rack_.say("world", [] { return std::string("the former run begins"); });
  World former(former_run(options_), rack_.trace, rack_.checks, snapshots_);
  const Outcome outcome = former.run();
  require(outcome.violation.empty(), [&] { return "the former run: " + outcome.violation; });
  rack_.say("world", [] { return std::string("the former run is over"); });
}

// Lets the boxes of a cluster learn of each other before its jobs begin.
void World::form_cluster() {
  constexpr uint64_t kFormsWithinNs = kNanosPerSecond;
  const uint64_t end_ns = queue_.now_ns() + kFormsWithinNs;
  bool is_formed = !options_.has_cluster;
  if (!is_formed) queue_.at(end_ns, [&is_formed] { is_formed = true; });
  while (!is_formed && queue_.step()) {
  }
}

void World::observe_again() {
  is_stopped_ = !observe_();
  queue_.after(observe_interval_ns_, [this] { observe_again(); });
}

void World::schedule_faults() {
  for (const Episode& episode : options_.episodes) {
    queue_.at(begin_ns_ + episode.begin_ns, [this, &episode] { begin(episode); });
    queue_.at(begin_ns_ + episode.begin_ns + episode.length_ns, [this, &episode] { end(episode); });
  }
  for (const ModelChange& change : options_.model_changes) {
    queue_.at(begin_ns_ + change.begin_ns, [this, &change] { change_model(change); });
  }
  for (const SnapshotCall& call : options_.snapshot_calls) {
    queue_.at(begin_ns_ + call.begin_ns, [this, &call] { ask_for_snapshot(call); });
  }
  for (const ChunkMove& move : options_.chunk_moves) {
    queue_.at(begin_ns_ + move.begin_ns, [this, &move] { move_chunks(move); });
  }
  network_.start_flows();
  queue_.at(begin_ns_ + options_.faults_end_ns, [this] { heal(); });
}

// Returns the sender and the receiver whose packets the episode stops: a worker and its box, or in
// two levels perhaps a rack's box and the upper box.
std::pair<HostId, HostId> World::path_of(const Episode& episode) {
  const Worker& worker = worker_of(episode.draw);
  const JobOptions& job = worker.job().options;
  HostId lower = worker.host();
  HostId box =
      options_.has_levels ? job.box_of(worker.rank()) : cluster_.owner(job).value_or(job.box);
  if (is_upper(episode)) {
    lower = client_of(options_, box);
    box = options_.top();
  }
  const bool towards_box = (episode.draw >> 40 & 1) != 0;
  return towards_box ? std::pair(lower, box) : std::pair(box, lower);
}

void World::begin(const Episode& episode) {
  rack_.say("world", [&] { return std::string("begins: ") + name_of(episode.kind); });
  Worker& worker = worker_of(episode.draw);
  Box& box = box_of(episode.draw);
  const auto pipeline = static_cast<uint32_t>(episode.draw >> 32);
  const auto [from, to] = path_of(episode);
  switch (episode.kind) {
    case EpisodeKind::kPartition:
      counts_.add(Fault::kPartition);
      silence(episode.length_ns);
      network_.set_blocked(from, to, true);
      return;
    case EpisodeKind::kClog: network_.set_clogged(from, to, true); return;
    case EpisodeKind::kDropFragment: drop_fragment(episode); return;
    case EpisodeKind::kPauseWorker:
      counts_.add(Fault::kPause);
      silence(episode.length_ns);
      worker.pause(episode.length_ns);
      return;
    case EpisodeKind::kPauseBox:
      counts_.add(Fault::kPause);
      hide_box(episode.length_ns);
      box.pause(episode.length_ns);
      return;
    case EpisodeKind::kPausePipeline:
      counts_.add(Fault::kPause);
      silence(episode.length_ns);
      box.pause_pipeline(pipeline, episode.length_ns);
      return;
    case EpisodeKind::kClockWorker:
      counts_.add(Fault::kClockJump);
      silence(episode.length_ns);
      worker.process().thread().jump(episode.length_ns);
      return;
    case EpisodeKind::kClockBox:
      counts_.add(Fault::kClockJump);
      hide_box(episode.length_ns);
      box.jump(episode.length_ns);
      return;
    case EpisodeKind::kSmallRing: box.set_small_ring(pipeline, true); return;
    case EpisodeKind::kSlowReader:
      counts_.add(Fault::kSlowReader);
      worker.process().set_slow(true);
      return;
    case EpisodeKind::kControlStall: stall_control(episode); return;
    case EpisodeKind::kControlBreak: break_control(episode); return;
    case EpisodeKind::kCrashWorker: lose_worker(episode); return;
    case EpisodeKind::kCrashBox: lose_box(episode); return;
    case EpisodeKind::kDisk: fail_disk(episode); return;
    case EpisodeKind::kOutsider: send_from_outside(episode, 20); return;
    case EpisodeKind::kMovePart: move_part(episode); return;
    case EpisodeKind::kDrainBox: drain(episode); return;
    case EpisodeKind::kStaleMap:
      counts_.add(Fault::kStaleMap);
      if (box.cluster() == nullptr) return;
      box.cluster()->store().cut_off(queue_.now_ns() + episode.length_ns, false);
      return;
    case EpisodeKind::kRebind:
      counts_.add(Fault::kRebind);
      for (Worker* part : process_of(worker)) part->rebind();
      return;
    case EpisodeKind::kCount: return;
  }
}

// Returns the host whose control connections the episode concerns.
HostId World::caller_of(const Episode& episode) {
  const Worker& worker = worker_of(episode.draw);
  if (!is_upper(episode)) return worker.host();
  return client_of(options_, worker.job().options.box_of(worker.rank()));
}

void World::stall_control(const Episode& episode) {
  counts_.add(Fault::kControlStall);
  silence(episode.length_ns);
  control_.stall(caller_of(episode), queue_.now_ns() + episode.length_ns);
}

void World::break_control(const Episode& episode) {
  counts_.add(Fault::kControlBreak);
  for (Worker* part : process_of(worker_of(episode.draw))) disturb(part->job(), false, part);
  control_.break_all(caller_of(episode));
}

void World::end(const Episode& episode) {
  rack_.say("world", [&] { return std::string("ends: ") + name_of(episode.kind); });
  Worker& worker = worker_of(episode.draw);
  switch (episode.kind) {
    case EpisodeKind::kPartition:
    case EpisodeKind::kClog: end_on_path(episode); return;
    case EpisodeKind::kDropFragment: network_.set_dropped(std::nullopt); return;
    case EpisodeKind::kSmallRing:
      box_of(episode.draw).set_small_ring(static_cast<uint32_t>(episode.draw >> 32), false);
      return;
    case EpisodeKind::kSlowReader: worker.process().set_slow(false); return;
    case EpisodeKind::kCrashWorker:
      for (Worker* part : process_of(worker)) part->start();
      return;
    case EpisodeKind::kCrashBox: box_of(episode.draw).start(); return;
    case EpisodeKind::kDisk: box_of(episode.draw).set_disk_failures(0); return;
    case EpisodeKind::kDrainBox: cluster_.end_drain(box_of(episode.draw).host()); return;
    default: return;
  }
}

void World::end_on_path(const Episode& episode) {
  const auto [from, to] = path_of(episode);
  const bool blocks = episode.kind == EpisodeKind::kPartition;
  const auto end = [&](HostId lower, HostId box) {
    for (const auto& [begin, end] : {std::pair(lower, box), std::pair(box, lower)}) {
      blocks ? network_.set_blocked(begin, end, false) : network_.set_clogged(begin, end, false);
    }
  };
  if (is_upper(episode)) return end(from, to);
  const HostId worker = worker_of(episode.draw).host();
  for (HostId box = 0; box < options_.boxes; ++box) end(worker, box);  // the job may have moved
}

void World::drop_fragment(const Episode& episode) {
  Worker& worker = worker_of(episode.draw);
  const JobModel& job = worker.job();
  network_.set_dropped(Network::Fragment{
      .first = job.first_host,
      .last = job.first_host + job.options.workers,
      .chunk = static_cast<uint32_t>(episode.draw >> 32) % static_cast<uint32_t>(job.chunks.size()),
      .fragment = static_cast<uint16_t>((episode.draw >> 48) % 3),
      .type = (episode.draw >> 56 & 1) != 0 ? wire::PacketType::kPush : wire::PacketType::kResult});
}

void World::heal() {
  network_.heal();
  for (const Episode& episode : options_.episodes) end(episode);
  for (auto& rogue : rogues_) rogue->stop();
  healed_ns_ = queue_.now_ns();
}

bool World::are_all_in(const JobModel& job) const {
  return std::all_of(workers_.begin(), workers_.end(), [&](const auto& worker) {
    return &worker->job() != &job || (worker->joined() && !worker->over());
  });
}

// Notes at the time of a disturbance whether the job may fail because of it. This depends on the
// job's policy and time-outs, and on ranks that have not joined yet or have left already.
// `loses_box`: a relaxed job's state is lost with its box.
void World::disturb(JobModel& job, bool loses_box, const Worker* lost) {
  const JobOptions& options = job.options;
  const bool needs_box = options.recovery == control::Recovery::kNone;
  const bool all_are_in = are_all_in(job);
  // A lost rank of a relaxed job may be excluded for good before it is back. The others continue,
  // provided that they have rank 0's initial weights.
  const bool others_go_on = lost != nullptr && lost->rank() != 0 && all_are_in &&
                            options.is_relaxed() && job.may_lack_ranks();
  if (others_go_on) {
    job.lost.insert(lost->rank());
    // A job that moves continues with a majority only, because it may have split into two halves.
    const size_t left = options.workers - job.lost.size();
    job.may_fail = job.may_fail || (options.may_move && 2 * left <= options.workers);
    return;
  }
  if (needs_box && (loses_box || !options.is_relaxed())) job.may_fail = true;
  gather_again(job, all_are_in);
}

// Notes that all ranks of the job must join again.
void World::gather_again(JobModel& job, bool all_are_in) {
  const JobOptions& options = job.options;
  job.disturbed = true;
  const bool some_may_leave = !job.at_barrier.empty();  // before the lost rank is back
  if (!options.patient || !all_are_in || some_may_leave || !options.barrier_at_end ||
      options.on_worker_lost == control::LostPolicy::kAbort) {
    job.may_fail = true;
  }
}

// Notes that questions about a box's jobs may stay unanswered for this time.
void World::hide_box(uint64_t length_ns) {
  silence(length_ns);
  if (length_ns < kStateAsksForNs) return;
  for (auto& job : jobs_) lose_state(*job);
}

// Notes that the job's state may be lost. With a model other than BSP no rank has that state.
void World::lose_state(JobModel& job) {
  job.may_lose_state = true;
  job.may_fail = job.may_fail || (job.options.is_relaxed() && job.options.may_move);
}

// Notes a silence after which a box or its workers may be declared lost.
void World::silence(uint64_t length_ns) {
  silence_ns_ += length_ns;
  if (silence_ns_ < options_.dead_after_ns / 2) return;
  for (auto& job : jobs_) {
    disturb(*job, false);
    // The upper box does not know how long the job waits. It has time-outs of its own.
    job->may_fail = job->may_fail || options_.has_levels;
  }
}

// Returns whether weights and optimizer state survive the loss of this box: on another box where
// the job runs, or in the backup copy.
bool World::outlives(const JobModel& job, const Box& lost) const {
  if (!job.options.has_copy) return false;
  bool runs = false;
  for (const auto& box : boxes_) {
    if (!box->up()) continue;
    for (const control::JobView& view : box->registry().views(queue_.now_ns())) {
      const bool has_part =
          std::find(view.parts.begin(), view.parts.end(), job.options.part) != view.parts.end();
      if (view.name != job.name || !has_part || view.state != "running") continue;
      runs = true;
      if (box.get() != &lost) continue;
      // The view does not say which part's copy is where, so all of them count.
      const auto& copies = view.backup->boxes;
      const auto copies_up = std::count_if(boxes_.begin(), boxes_.end(), [&](const auto& other) {
        return other->up() && copies.contains(name_of_box(other->host()));
      });
      const bool are_copied = view.backup->parts_without == 0 && !copies.empty();
      if (!are_copied || static_cast<size_t>(copies_up) < copies.size()) return false;
    }
  }
  return runs;
}

void World::lose_box(const Episode& episode) {
  Box& box = box_of(episode.draw);
  counts_.add(Fault::kBoxCrash);
  for (auto& job : jobs_) {
    const bool is_elsewhere =
        !job->options.may_move && cluster_.owner(job->options).value_or(box.host()) != box.host();
    if (is_elsewhere && !options_.has_levels) continue;
    const bool is_copied = outlives(*job, box);
    disturb(*job, !is_copied || !job->options.is_relaxed());
    // The loss of a rack's box ends the job.
    job->may_fail = job->may_fail || (options_.has_levels && box.host() != options_.top());
    if (!is_copied) lose_state(*job);
    job->may_have_registered_models = true;
  }
  box.crash((episode.draw >> 41 & 1) != 0);
}

void World::fail_disk(const Episode& episode) {
  Box& box = box_of(episode.draw);
  for (auto& job : jobs_) {
    // In a cluster the job may be on that box later.
    job->may_fail = job->may_fail || cluster_.is_on() || cluster_.owner(job->options) == box.host();
  }
  box.set_disk_failures(2 + episode.draw % 4);
}

BoxCluster* World::leaders_cluster() {
  const auto leader = std::find_if(boxes_.begin(), boxes_.end(), [](const auto& box) {
    return box->cluster() != nullptr && box->cluster()->boxes().leads();
  });
  return leader == boxes_.end() ? nullptr : (*leader)->cluster();
}

// Asks the leader to drain a box, as an operator does, or to make it a standby, as a scaler does.
void World::drain(const Episode& episode) {
  BoxCluster* leader = leaders_cluster();
  if (leader == nullptr) return;
  counts_.add(Fault::kDrain);
  const bool is_standby = (episode.draw >> 42 & 1) != 0;
  leader->maps().set_duty(
      name_of_box(box_of(episode.draw).host()),
      is_standby ? cluster::Duty::kStandby : cluster::Duty::kDrains, [](const Status&) {},
      is_standby);
}

// Returns the workers of the same rank in all parts of the job. In the product they are one
// process.
std::vector<Worker*> World::process_of(const Worker& worker) {
  std::vector<Worker*> parts;
  for (auto& other : workers_) {
    const bool is_its = other->job().name == worker.job().name && other->rank() == worker.rank();
    if (is_its) parts.push_back(other.get());
  }
  return parts;
}

void World::lose_worker(const Episode& episode) {
  for (Worker* worker : process_of(worker_of(episode.draw))) {
    if (worker->over()) continue;
    counts_.add(Fault::kWorkerCrash);
    disturb(worker->job(), false, worker);
    JobModel& job = worker->job();
    const bool is_final = job.options.is_collective || wire::keeps_copies(job.options.sync) ||
                          job.options.sync.model == wire::SyncModel::kDrop;
    // No other process can take its place, and the others do not go on without it.
    if (is_final && !job.lost.contains(worker->rank())) job.may_fail = true;
    worker->crash((episode.draw >> 41 & 1) != 0);
  }
}

}  // namespace pbox::sim
