#include "tests/sim/worker.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "nic/wire/control_frame.h"
#include "nic/wire/control_versions.h"
#include "tests/sim/violation.h"

namespace pbox::sim {
namespace {

constexpr uint32_t kFirstPort = 20'000;
constexpr uint32_t kPortsOfPart = 8;
constexpr uint32_t kJoinTimeoutMs = 60'000;
constexpr uint64_t kSupervisorNs = 300 * kNanosPerMilli;
constexpr uint32_t kStartsMax = 1000;
constexpr uint64_t kAskAgainNs = 200 * kNanosPerMilli;
constexpr uint64_t kMapTimeoutNs = 3 * kNanosPerSecond;

std::vector<worker::TensorSpec> tensors_of(const JobOptions& job) {
  std::vector<worker::TensorSpec> tensors;
  for (const TensorOptions& tensor : job.tensors) {
    tensors.push_back({.name = job.tensor_name(static_cast<uint32_t>(tensors.size())),
                       .elements = tensor.elements,
                       .dtype = job.dtype,
                       .priority = tensor.priority,
                       .row_elements = tensor.row_elements,
                       .compression = tensor.compression,
                       .sync = tensor.sync});
  }
  return tensors;
}

worker::MembershipOptions membership_options(const Rack& rack, const JobModel& job, uint32_t rank,
                                             uint32_t incarnation, const JobPlace& place) {
  const JobOptions& options = job.options;
  worker::MembershipOptions membership;
  membership.job = job.name;
  membership.part = options.part;
  membership.parts = options.parts;
  membership.box = address_of_box(place.box);
  membership.box_name = name_of_box(place.box);
  membership.boxes = place.boxes;
  const RackPlace in_rack =
      options.racks.empty() ? RackPlace{0, rank, options.workers} : options.place_of(rank);
  membership.rank = in_rack.rank;
  membership.world_size = in_rack.ranks;
  membership.min_world_size = options.workers_min;
  membership.optimize = options.mode == pipeline::Mode::kOptimize;
  membership.collective = options.is_collective;
  membership.mean = options.reduction == pipeline::Reduction::kMean;
  membership.weighted = options.weighted;
  membership.chunk_bytes = options.chunk_bytes;
  membership.window_bytes = options.window_bytes;
  membership.join_timeout_ms = kJoinTimeoutMs;
  membership.lost_timeout_ms = options.lost_timeout_ms();
  membership.recover_timeout_ms = options.recover_timeout_ms();
  membership.recovery = static_cast<worker::Recovery>(options.recovery);
  membership.on_worker_lost = static_cast<worker::LostPolicy>(options.on_worker_lost);
  membership.priority_policy = options.priority_policy;
  membership.delivery = options.delivery;
  membership.numerics = options.numerics;
  membership.guard = options.guard;
  membership.sync = options.sync;
  membership.relaxed_model = options.relaxed_model();
  membership.replicas = options.has_copy ? 1 : 0;
  membership.incarnation = uint64_t{job.first_host + rank} << 32 | incarnation;
  membership.incarnation |= uint64_t{rack.options.run} << 60;
  if (options.restores) membership.restore = "latest";
  membership.seed = rack.options.seed * 77 + membership.incarnation + options.part;
  return membership;
}

}  // namespace

proto::Optimizer optimizer_message(const optimizer::OptimizerSpec& spec) {
  proto::Optimizer message;
  message.set_kind(static_cast<uint32_t>(spec.kind));
  message.set_learning_rate(spec.learning_rate);
  message.set_momentum(spec.momentum);
  message.set_beta1(spec.beta1);
  message.set_beta2(spec.beta2);
  message.set_epsilon(spec.epsilon);
  message.set_weight_decay(spec.weight_decay);
  return message;
}

std::unique_ptr<worker::Membership> make_membership(const Rack& rack, const JobModel& job,
                                                    uint32_t rank, uint32_t incarnation,
                                                    bool rejoins, const JobPlace& place,
                                                    std::shared_ptr<worker::SendPaths> paths) {
  worker::MembershipOptions options = membership_options(rack, job, rank, incarnation, place);
  options.rejoin = rejoins || job.options.is_elastic();
  options.paths = std::move(paths);
  return std::make_unique<worker::Membership>(options, tensors_of(job.options),
                                              optimizer_message(optimizer_of(job.options)));
}

Worker::Worker(Rack& rack, std::shared_ptr<Process> process, JobModel& job, uint32_t rank)
    : Member(rack,
             {.process = std::move(process),
              .first_port = static_cast<uint16_t>(kFirstPort + kPortsOfPart * job.options.part),
              .path_mtu = job.options.path_mtu}),
      job_(job),
      rank_(rank) {}

std::string Worker::who() const {
  return job_.title + " rank " + std::to_string(rank_);
}

void Worker::start() {
  // The rank may run already: the end of a crash episode can start it before its own time.
  if (over_ || membership_ != nullptr || asks_map_) return;
  rack_.say(who(), [&] { return "starts"; });
  ++starts_;
  started_ns_ = rack_.queue.now_ns();
  barrier_asked_ = is_placed_ = false;
  failure_.reset();
  job_.done.erase(rank_);
  constexpr uint64_t kSeedOfPart = 1'000'000'007;
  const uint64_t seed = rack_.options.seed * 1000 + host() + kSeedOfPart * job_.options.part;
  application_ = make_application(job_, rank_, seed);
  if (!rack_.cluster.is_on()) return join({.box = job_.options.box_of(rank_)});
  asks_map_ = true;
  boxes_asked_ = rank_;
  if (rack_.options.asks_once && job_.options.part != 0) {
    process_->await_map([this](const proto::PartMap& map) { take_map(map); });
  } else {
    ask_map();
  }
}

void Worker::join(const JobPlace& place) {
  begin(make_membership(rack_, job_, rank_, starts_, has_been_in_, place, process_->paths()));
}

void Worker::ask_map() {
  asking_ = rack_.control.connect(host(), boxes_asked_++ % rack_.options.boxes);
  rack_.queue.after(kMapTimeoutNs, [this, id = asking_] {
    if (id == asking_) ask_map_again();
  });
}

void Worker::ask_map_again() {
  if (asking_ != 0) rack_.control.close(std::exchange(asking_, 0), host());
  rack_.queue.after(kAskAgainNs, [this, starts = starts_] {
    if (asks_map_ && asking_ == 0 && starts == starts_) ask_map();
  });
}

void Worker::on_connected(ConnectionId id) {
  if (id != asking_ || asking_ == 0) return Member::on_connected(id);
  proto::WorkerMessage message;
  proto::AskPartMap& question = *message.mutable_ask_part_map();
  question = worker::part_map_request(job_.name);
  const JobOptions& options = job_.options;
  question.set_bytes(options.parts == 1 ? options.bytes()
                                        : options.parts * rack_.options.largest_part_bytes());
  question.set_may_move(options.may_move);
  wire::state_versions(message);
  rack_.control.send(id, host(), wire::frame(message)->substr(wire::kControlLengthBytes));
}

void Worker::on_control_message(ConnectionId id, const std::string& body) {
  if (id != asking_ || asking_ == 0) return Member::on_control_message(id, body);
  proto::BoxMessage message;
  require(message.ParseFromString(body), "a box sent an invalid control message");
  if (!message.has_part_map()) return ask_map_again();
  const proto::PartMap& map = message.part_map();
  require(map.parts_size() == static_cast<int>(job_.options.parts),
          [&] { return who() + ": the part map has another number of parts than the job"; });
  rack_.control.close(std::exchange(asking_, 0), host());
  process_->tell_map(map);
  take_map(map);
}

void Worker::take_map(const proto::PartMap& map) {
  asks_map_ = false;
  const std::string& box_name = map.parts(static_cast<int>(job_.options.part)).box();
  rack_.say(who(), [&] { return "is told to go to " + box_name; });
  JobPlace place{.box = box_at(box_name)};
  for (HostId box = 0; box < rack_.options.boxes; ++box) place.boxes.push_back(address_of_box(box));
  join(place);
}

void Worker::on_closed(ConnectionId id, const std::string& reason) {
  if (id != asking_ || asking_ == 0) return Member::on_closed(id, reason);
  asking_ = 0;
  ask_map_again();
}

void Worker::crash(bool silently) {
  if (over_ || (membership_ == nullptr && !asks_map_)) return;
  asks_map_ = false;
  asking_ = 0;
  rack_.say(who(), [&] { return "crashes"; });
  rack_.control.abort_all(host(), silently);
  lose_state();
  if (!job_.collectives) return;
  failure_ =
      Error{ErrorCode::kWorkerLost,
            "the process of this rank crashed, and in mode collective no other may take its place"};
  end();
}

void Worker::lose_state() {
  forget();
  job_.forget(rank_);
}

uint64_t Worker::waits_since_ns() const {
  if (over_ || job_.done.contains(rank_) || starts_ == 0) return UINT64_MAX;
  if (!joined()) return started_ns_;
  return barrier_asked_ ? barrier_asked_ns_ : application_->oldest_start_ns();
}

uint64_t Worker::start_operations(uint64_t now_ns) {
  const bool may_come_late = has_been_in_ || job_.options.is_elastic();
  if (!std::exchange(is_placed_, true) && may_come_late) {
    application_->resume(*membership_->exchange(), now_ns);
  }
  has_been_in_ = true;
  job_.awaited.erase(rank_);
  began_ns_ = std::min(began_ns_, rack_.queue.now_ns());
  return application_->start_due(*membership_, now_ns, rack_.queue.now_ns());
}

bool Worker::complete_operations(worker::Exchange& exchange, uint64_t now_ns) {
  const auto completed = exchange.take_completed();
  for (const uint32_t tensor : completed) {
    rack_.say(who(), [&] { return "has completed tensor " + std::to_string(tensor); });
    application_->completed(tensor, exchange, now_ns);
  }
  const bool has_round = application_->rounds_completed() >= job_.options.tensors.size();
  if (first_round_ns_ == 0 && has_round) first_round_ns_ = rack_.queue.now_ns() - began_ns_;
  if (rack_.checks && job_.options.is_relaxed() && !completed.empty()) check_statistics(exchange);
  if (application_->done()) leave_when_done();
  return !completed.empty();
}

// Returns nothing unless the priority policy is `explicit`, because only then do the application's
// priorities count.
std::optional<BurstCheck::Chunk> Worker::chunk(uint32_t id) const {
  if (job_.options.priority_policy != wire::PriorityPolicy::kExplicit || job_.collectives) {
    return std::nullopt;
  }
  const JobModel::Chunk& chunk = job_.chunks[id];
  return BurstCheck::Chunk{.priority = application_->priority(chunk.tensor),
                           .bytes = job_.wire_bytes(id, 1)};  // weights take more
}

// Checks the product's statistics of reads against the reads that were made.
void Worker::check_statistics(const worker::Exchange& exchange) const {
  const worker::Statistics statistics = exchange.statistics();
  const auto dropped = application_->operations_dropped();
  require(!dropped || statistics.dropped_rounds == *dropped, [&] {
    return who() + ": some part was dropped of " + std::to_string(*dropped) + " operations, but " +
           std::to_string(statistics.dropped_rounds) + " are reported";
  });
  const auto& reads = statistics.staleness.by_staleness;
  uint32_t bound = 0;
  for (uint32_t tensor = 0; tensor < job_.options.tensors.size(); ++tensor) {
    if (!job_.reads.bound(tensor)) return;
    bound = std::max(bound, *job_.reads.bound(tensor));
  }
  for (size_t age = bound + 1; age < reads.size(); ++age) {
    require(reads[age] == 0, [&] {
      return who() + ": reports a read that is older than the bound: staleness " +
             std::to_string(age);
    });
  }
}

// A rank that leaves takes along results that others may need for recovery, so careful applications
// first wait for each other.
void Worker::leave_when_done() {
  if (!job_.awaited.empty()) return;  // checked again with the next heartbeat
  if (job_.options.barrier_at_end) {
    if (!std::exchange(barrier_asked_, true)) {
      barrier_asked_ns_ = rack_.queue.now_ns();
      job_.at_barrier.insert(rank_);
      membership_->ask_barrier();
    }
    if (membership_->requests().barriers_released() == 0) return;
    require(job_.may_lack_ranks() || are_all_at_barrier(), [&] {
      return job_.title + ": a barrier was released before all ranks had reached it";
    });
  }
  job_.done.insert(rank_);
  if (!are_other_parts_done()) return;
  job_.is_ending = true;
  // A rank that is being recovered while others leave may find no partner to continue with.
  job_.may_fail = job_.may_fail || job_.disturbed;
  membership_->leave();
}

// Returns whether all ranks are at the barrier. In two levels each rack has barriers of its own.
bool Worker::are_all_at_barrier() const {
  const JobOptions& options = job_.options;
  for (uint32_t rank = 0; rank < options.workers; ++rank) {
    const bool is_there = job_.at_barrier.contains(rank);
    if (!is_there && options.box_of(rank) == options.box_of(rank_)) return false;
  }
  return true;
}

// Returns whether this rank is done in all parts of its job, because a worker leaves all parts at
// once. If it is not, this is checked again with its next heartbeat.
bool Worker::are_other_parts_done() const {
  return std::all_of(rack_.jobs.begin(), rack_.jobs.end(), [this](const auto& other) {
    return other->name != job_.name || other->done.contains(rank_);
  });
}

void Worker::end_if_over() {
  using Phase = worker::Membership::Phase;
  const Phase phase = membership_->phase();
  if (over_ || (phase != Phase::kFailed && phase != Phase::kLeft)) return;
  close_lanes();
  hang_up();
  if (phase == Phase::kFailed) {
    failure_ = membership_->failure();
    rack_.say(who(), [&] { return "fails: " + failure_->message; });
    if (may_try_again()) {
      // The previous process died before it was told of its session. Then the error says to set
      // rejoin, and the supervisor does so.
      has_been_in_ = has_been_in_ || failure_->message.find("set rejoin") != std::string::npos;
      lose_state();
      rack_.queue.after(kSupervisorNs, [this] { start(); });
      return;
    }
  }
  end();
}

void Worker::end() {
  job_.done.insert(rank_);
  job_.awaited.erase(rank_);
  over_ = job_.is_ending = true;
  over_ns_ = rack_.queue.now_ns();
}

// Returns whether the supervisor restarts the rank. It does if the rank was left behind, or was not
// admitted because the box still considered its predecessor alive.
bool Worker::may_try_again() const {
  const bool in_anothers_place = starts_ > 1 && !is_placed_;
  const bool goes_on_alone = job_.may_lack_ranks() || job_.has_replacements();
  const bool was_left_behind = goes_on_alone && failure_->code == ErrorCode::kWorkerLost;
  return (in_anothers_place || was_left_behind) && !job_.is_ending && starts_ < kStartsMax;
}

void Worker::pause(uint64_t length_ns) {
  thread().pause(length_ns);
  rack_.control.stall(host(), rack_.queue.now_ns() + length_ns);
}

}  // namespace pbox::sim
