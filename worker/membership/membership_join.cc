// Takes a worker that joins or resumes from a connection to a session.
#include <algorithm>

#include "base/check.h"
#include "base/clock.h"
#include "base/version.h"
#include "nic/quantize/rounding.h"
#include "nic/wire/control_versions.h"
#include "nic/wire/sync_message.h"
#include "worker/membership/membership.h"
#include "worker/membership/session.h"

namespace pbox::worker {
namespace {

constexpr uint64_t kJoinHeartbeatNs = 1'000'000'000;

// Returns the JOIN of a worker's first session. A worker that resumes adds its progress.
proto::WorkerMessage join_message(const MembershipOptions& options,
                                  const std::vector<TensorSpec>& tensors,
                                  const proto::Optimizer& optimizer, uint32_t path_mtu) {
  proto::WorkerMessage message;
  proto::Join& join = *message.mutable_join();
  join.set_job(options.job);
  join.set_part(options.part);
  join.set_parts(options.parts);
  join.set_rank(options.rank);
  join.set_world_size(options.world_size);
  join.set_min_world_size(options.min_world_size);
  join.set_mode(options.optimize ? 1 : 0);
  join.set_reduction(options.mean ? 1 : 0);
  join.set_weighted(options.weighted);
  join.set_collective(options.collective);
  if (options.optimize) *join.mutable_optimizer() = optimizer;
  if (needs_verdicts(options, optimizer)) {
    join.mutable_filled_parts()->Add(options.filled_parts.begin(), options.filled_parts.end());
  }
  join.set_chunk_bytes(options.chunk_bytes);
  join.set_path_mtu(options.path_mtu != 0 ? options.path_mtu : path_mtu);
  join.set_join_timeout_ms(options.join_timeout_ms);
  join.set_lost_timeout_ms(options.lost_timeout_ms);
  join.set_software(std::string("libpbox ") + kVersion);
  join.set_on_worker_lost(static_cast<uint32_t>(options.on_worker_lost));
  join.set_recovery(static_cast<uint32_t>(options.recovery));
  join.set_incarnation(options.incarnation);
  join.set_priority_policy(static_cast<uint32_t>(options.priority_policy));
  join.set_delivery(static_cast<uint32_t>(options.delivery));
  join.set_numerics(static_cast<uint32_t>(options.numerics));
  join.set_guard(static_cast<uint32_t>(options.guard.policy));
  join.set_guard_max_abs(options.guard.max_abs);
  join.set_restore(options.restore);
  join.set_replicas(options.replicas);
  join.set_is_backup(options.is_backup);
  join.set_backup_has_clocks(options.backup_has_clocks);
  join.set_workers(options.workers);
  if (options.sync != wire::SyncSpec{}) *join.mutable_sync() = wire::sync_message(options.sync);
  if (options.sync.model == wire::SyncModel::kBsp) {
    join.set_relaxed_model(static_cast<uint32_t>(options.relaxed_model));
  }
  join.set_rejoins(options.rejoin);
  for (const TensorSpec& spec : tensors) {
    proto::Tensor& tensor = *join.add_tensors();
    tensor.set_name(spec.name);
    tensor.set_elements(spec.elements);
    tensor.set_first_element(spec.first_element);
    tensor.set_row_elements(spec.row_elements);
    tensor.set_compression(static_cast<uint32_t>(spec.compression));
    tensor.set_dtype(static_cast<uint32_t>(spec.dtype));
    tensor.set_priority(spec.priority);
    tensor.set_lr_scale(spec.lr_scale);
    tensor.set_has_weight_decay(spec.weight_decay >= 0);
    tensor.set_weight_decay(std::max(0.0f, spec.weight_decay));
    if (spec.sync) *tensor.mutable_sync() = wire::sync_message(*spec.sync);
  }
  return message;
}

// Returns an error unless the box knows every field that the JOIN uses. A box of an older release
// would refuse the JOIN without naming the field, or ignore the field.
Status check_versions(const std::string& box, const proto::DataAddresses& answer,
                      const proto::WorkerMessage& join, wire::AddedFields fields) {
  const wire::VersionRange versions = wire::stated_versions(answer);
  const wire::VersionRange own;
  const auto common = wire::common_version(versions, own);
  const std::string peers = "box " + box + " supports control protocol " +
                            wire::to_string(versions) + ", this libpbox (" + kVersion +
                            ") supports " + wire::to_string(own);
  if (!common) {
    return Error{ErrorCode::kVersionMismatch,
                 peers +
                     "; upgrade the older of the two: a box and a worker may differ by one version "
                     "of the protocol"};
  }
  const auto lacking = wire::used_fields(join, *common, fields);
  if (lacking.empty()) return ok_status();
  return Error{ErrorCode::kVersionMismatch,
               "job '" + join.join().job() + "' uses " + lacking[0]->name +
                   ", which needs control protocol " + std::to_string(lacking[0]->since) +
                   " or later: " + peers + "; upgrade the box, or do without that option"};
}

// Returns the next round that each chunk needs, in as many messages as that takes.
std::vector<proto::WorkerMessage> round_messages(const Exchange& exchange) {
  std::vector<proto::WorkerMessage> messages;
  const std::vector<uint32_t> rounds = exchange.consumed_rounds();
  for (size_t first = 0; first < rounds.size(); first += limits::kRoundMapChunksMax) {
    const size_t end = std::min<size_t>(rounds.size(), first + limits::kRoundMapChunksMax);
    proto::RoundMap& map = *messages.emplace_back().mutable_rounds();
    map.set_first_chunk(static_cast<uint32_t>(first));
    for (size_t chunk = first; chunk < end; ++chunk) {
      const auto id = static_cast<uint32_t>(chunk);
      map.add_rounds(rounds[chunk]);
      if (exchange.lacks_result(id)) map.add_lacks(id);
    }
    map.set_last(end == rounds.size());
  }
  return messages;
}

// Gives each pipeline of the session its seal.
Status give_seals(const proto::Session& session, const MembershipOptions& options,
                  seal::SessionKeys* keys, SessionSpec& spec) {
  const auto suite = static_cast<seal::Suite>(session.suite());
  if (keys == nullptr) {
    if (suite == seal::Suite::kNone) return ok_status();
    return Error{
        ErrorCode::kVersionMismatch,
        "box " + options.box + " seals packets with keys, but this worker has none; set PBOX_KEYS"};
  }
  if (suite != seal::Suite::kGmac256 && suite != seal::Suite::kGcm256) {
    return Error{ErrorCode::kVersionMismatch,
                 "box " + options.box + " seals packets with cipher suite " +
                     std::to_string(session.suite()) + ", which this libpbox (" + kVersion +
                     ") does not know; use the same release on both sides"};
  }
  const seal::SessionName name{.box = session.box(),
                               .job = options.job,
                               .part = options.part,
                               .rank = options.rank,
                               .epoch = session.epoch(),
                               .incarnation = options.incarnation,
                               .suite = suite};
  for (uint32_t index = 0; index < spec.pipelines.size(); ++index) {
    auto made = keys->make(name, {index, spec.pipelines[index].spi});
    if (!made) return made.error();
    *spec.pipelines[index].seal = std::move(*made);
  }
  return ok_status();
}

}  // namespace

uint32_t version_of_job(const MembershipOptions& options, const std::vector<TensorSpec>& tensors,
                        const proto::Optimizer& optimizer) {
  return wire::version_of_job(join_message(options, tensors, optimizer, 0), options.added_fields);
}

void Membership::begin(uint64_t now_ns) {
  PBOX_CHECK(phase_ == Phase::kIdle);
  phase_ = Phase::kJoining;
  join_ends_ns_ = now_ns + options_.join_timeout_ms * kNanosPerMilli;
  connect(options_.box, join_ends_ns_);
}

void Membership::connect(const std::string& box, uint64_t deadline_ns) {
  PBOX_CHECK(joins());
  await(Step::kConnection);
  connected_box_ = box;
  has_answered_ = false;
  Action& action = act(Action::Kind::kConnect);
  action.box = box;
  if (box == options_.box) action.box_name = options_.box_name;
  action.deadline_ns = deadline_ns;
}

void Membership::await(Step step, uint64_t deadline_ns) {
  step_ = step;
  step_deadline_ns_ = deadline_ns;
}

void Membership::check_join(uint64_t now_ns) {
  if (now_ns < step_deadline_ns_) return;
  if (step_ == Step::kRetry) return connect(options_.box, std::max(now_ns, join_ends_ns_));
  const char* question = step_ == Step::kDataAddresses ? "the worker" : "JOIN";
  fail({ErrorCode::kTimeout, "box " + options_.box + " did not answer " + question + " of job '" +
                                 options_.job + "' within " +
                                 std::to_string(options_.join_timeout_ms) + " ms"});
}

void Membership::on_connected(const nic::Endpoint& peer, uint64_t now_ns, seal::SessionKeys* keys) {
  if (!awaits(Step::kConnection)) return;
  peer_ = peer;
  session_keys_ = keys;
  heard_ns_ = now_ns;
  priorities_known_ = false;
  if (phase_ == Phase::kRecovering && !options_.boxes.empty()) return ask_part_map(now_ns);
  ask_data_addresses(now_ns);
}

void Membership::ask_data_addresses(uint64_t now_ns) {
  PBOX_CHECK(joins());
  await(Step::kDataAddresses, answer_deadline_ns(options_, now_ns));
  send().mutable_ask_data_addresses();
}

void Membership::on_data_addresses(const proto::DataAddresses& answer, uint64_t now_ns) {
  if (!awaits(Step::kDataAddresses)) return;
  proto::WorkerMessage join = join_message(options_, tensors_, optimizer_, 0);
  if (exchange_) describe_progress(*join.mutable_join());
  const Status speaks = check_versions(connected_box_, answer, join, options_.added_fields);
  if (!speaks) return fail_or_retry(speaks.error(), now_ns);
  std::vector<nic::Endpoint> addresses;
  for (const std::string& address : answer.addresses()) {
    if (address.empty()) {
      addresses.push_back(peer_);
      continue;
    }
    const auto named = nic::parse_endpoint(address, peer_.port);
    if (!named) return fail(named.error());
    addresses.push_back(*named);
  }
  await(Step::kPathMtu);
  act(Action::Kind::kMeasurePath).addresses = std::move(addresses);
}

void Membership::on_path_mtu(const Result<uint32_t>& path_mtu, uint64_t now_ns) {
  if (!awaits(Step::kPathMtu)) return;
  if (!path_mtu) return fail_or_retry(path_mtu.error(), now_ns);
  proto::WorkerMessage join = join_message(options_, tensors_, optimizer_, *path_mtu);
  if (exchange_) describe_progress(*join.mutable_join());
  wire::state_versions(join, options_.added_fields);
  send() = std::move(join);
  if (exchange_) {
    for (proto::WorkerMessage& message : round_messages(*exchange_)) send() = std::move(message);
  }
  await(Step::kSession, answer_deadline_ns(options_, now_ns));
  // The box waits this long for ranks that do not come back. A rank that gave up earlier would
  // connect again, and if all ranks did so, the box would begin to wait anew.
  if (phase_ == Phase::kRecovering) {
    step_deadline_ns_ += options_.lost_timeout_ms * kNanosPerMilli + dead_after_ns_;
  }
  // An existing session keeps its interval: the box detects a lost worker by the interval that it
  // announced.
  if (!exchange_) heartbeat_interval_ns_ = kJoinHeartbeatNs;
  heartbeat_due_ns_ = now_ns + heartbeat_interval_ns_;
}

// Writes this worker's progress into a JOIN that resumes.
void Membership::describe_progress(proto::Join& join) const {
  PBOX_CHECK(exchange_.has_value());
  join.set_rejoins(false);
  join.set_chunk_bytes(session_.chunk_bytes());  // because rounds are counted per chunk
  join.set_resumes(true);
  join.set_epoch(session_.epoch());
  join.set_box(session_.box());
  if (session_.has_copy()) *join.mutable_copy() = session_.copy();
  join.set_restored_snapshot(history_.restored.snapshot);
  join.set_restored_steps(history_.restored.steps);
  join.set_generation(session_.generation());
  requests_.describe(join);
  if (verdict_->held()) *join.mutable_verdict() = *verdict_->held();
  join.mutable_absent_ranks()->Add(absent_ranks_.begin(), absent_ranks_.end());
}

void Membership::on_session(const proto::Session& session, uint64_t now_ns) {
  if (!awaits(Step::kSession)) return;
  auto spec = parse_session(session, tensors_, peer_);
  if (!spec) return fail(spec.error());
  if (const Status sealed = give_seals(session, options_, session_keys_, *spec); !sealed)
    return fail(sealed.error());
  if (needs_verdicts(options_, optimizer_) && !session.gives_verdicts()) {
    return fail({ErrorCode::kVersionMismatch,
                 "box " + options_.box +
                     " can neither clip gradients (max_grad_norm) nor skip rounds "
                     "(skip_nonfinite), because its pboxd is older than this libpbox; upgrade "
                     "pboxd, or set neither option"});
  }
  if (session.optimizer_restarted() && session.epoch() != session_.epoch()) {
    ++history_.optimizer_restarts;
    history_.optimizer_state = {session.optimizer_snapshot(), session.optimizer_snapshot_steps()};
  }
  // The snapshot that a job began with never changes. After a loss, this worker tells the box.
  if (!exchange_) history_.restored = {session.restored_snapshot(), session.restored_steps()};
  session_ = session;
  spec_ = std::move(*spec);
  spec_.rank = options_.rank;
  spec_.jitter_seed = options_.seed;
  spec_.rounding_seed = quantize::hash_of(options_.job);
  spec_.delivery = options_.delivery;
  spec_.ignores_results = options_.is_backup;
  spec_.caller_keeps_results = options_.caller_keeps_results && keeps_results(options_);
  spec_.optimizes = options_.optimize;
  spec_.holds_rounds = session.gives_verdicts();
  spec_.has_upper_box = session.workers() > options_.world_size;
  spec_.probes_path = options_.probes_path;
  if (options_.window_bytes > 0) spec_.window_bytes = options_.window_bytes;
  spec_.sync = options_.sync;
  spec_.relaxed_model = options_.relaxed_model;
  spec_.guard = options_.guard;
  spec_.learning_rate = requests_.learning_rate().value_or(optimizer_.learning_rate());
  if (options_.mean) spec_.gradient_scale = 1.0f / static_cast<float>(options_.world_size);
  on_membership(session.generation(), session.absent_ranks());
  heartbeat_interval_ns_ = std::max(session.heartbeat_interval_ms(), 10u) * kNanosPerMilli;
  heartbeat_due_ns_ = std::min(heartbeat_due_ns_, now_ns + heartbeat_interval_ns_);
  dead_after_ns_ = std::max(session.dead_after_ms(), 100u) * kNanosPerMilli;
  if (session.has_rounds()) {
    await(Step::kRounds, answer_deadline_ns(options_, now_ns));
  } else {
    ask_transport(now_ns);
  }
}

// Takes a piece of the box's list of rounds. The pieces arrive in chunk order.
void Membership::on_rounds(const proto::RoundMap& rounds, uint64_t now_ns) {
  if (!awaits(Step::kRounds)) return;
  const size_t chunks = spec_.chunk_pipeline.size();
  const size_t known = spec_.open_rounds.size() + static_cast<size_t>(rounds.rounds_size());
  if (rounds.first_chunk() != spec_.open_rounds.size() || known > chunks ||
      rounds.last() != (known == chunks)) {
    return fail({ErrorCode::kInternal,
                 "the box's list of rounds does not match this worker's chunks; use the same "
                 "release on both sides"});
  }
  spec_.open_rounds.insert(spec_.open_rounds.end(), rounds.rounds().begin(), rounds.rounds().end());
  spec_.chunks_to_restore.insert(spec_.chunks_to_restore.end(), rounds.give().begin(),
                                 rounds.give().end());
  if (rounds.last()) ask_transport(now_ns);
}

void Membership::ask_transport(uint64_t now_ns) {
  PBOX_CHECK(spec_.open_rounds.empty() || spec_.open_rounds.size() == spec_.chunk_pipeline.size());
  await(Step::kTransport);
  Action& open = act(Action::Kind::kOpenTransport);
  open.session = spec_;
  open.deadline_ns = now_ns + options_.join_timeout_ms * kNanosPerMilli;
  if (phase_ == Phase::kRecovering) {
    open.deadline_ns = std::min(open.deadline_ns, recovery_ends_ns(options_, *loss_));
  }
}

void Membership::on_transport_open(const Result<TransportFacts>& facts, uint64_t now_ns) {
  if (!awaits(Step::kTransport)) return;
  if (!facts) return fail_or_retry(facts.error(), now_ns);
  PBOX_CHECK(facts->receivable_bytes.size() == spec_.pipelines.size());
  spec_.rto_floor_ns = facts->rto_floor_ns;
  spec_.unread_memory = facts->unread_memory;
  for (size_t index = 0; index < spec_.pipelines.size(); ++index) {
    const uint32_t receivable_bytes = facts->receivable_bytes[index];
    uint32_t& credit_bytes = spec_.pipelines[index].credit_bytes;
    // The window also bounds the results in flight, so it must fit into what this side can receive.
    credit_bytes = std::min(credit_bytes, receivable_bytes);
    spec_.window_bytes = std::min(spec_.window_bytes, receivable_bytes);
    if (options_.paths == nullptr) continue;
    spec_.pipelines[index].path = options_.paths->find(spec_.pipelines[index], facts->rto_floor_ns);
  }
  if (const Status opened = open_exchange(); !opened) return fail(opened.error());
  phase_ = Phase::kRunning;
  heard_ns_ = now_ns;
  if (loss_) ++history_.recoveries;
  loss_.reset();
  redirections_ = 0;
  requests_.on_barrier_released(session_.barrier_released());
  repeat_requests();
}

Status Membership::open_exchange() {
  if (exchange_) return exchange_->resume(spec_);
  requests_.begin(session_.barrier_released());
  const uint32_t shadows = options_.optimize ? 2 : 1;
  const bool is_kept = keeps_results(options_);
  const char* purpose = is_kept ? "recovery keeps; set recovery none to do without the copy"
                                : "cached reads need; lower the staleness to need less memory";
  const bool needs_shadow = is_kept && !spec_.caller_keeps_results;
  const uint64_t bytes =
      needs_shadow ? shadow_bytes(spec_, tensors_, shadows) : cache_bytes(spec_, tensors_);
  NumaArena copy;
  if (bytes > 0) {
    auto placed = NumaArena::create(bytes, Hugepages::kNever);
    if (!placed) {
      return Error{ErrorCode::kResourceExhausted,
                   placed.error().message + " for the copy of the model that " + purpose};
    }
    copy = std::move(*placed);
  }
  exchange_.emplace(spec_, tensors_, std::move(copy), shadows);
  learn_priorities();
  return ok_status();
}

}  // namespace pbox::worker
