// From the first connect to the session.
#include <algorithm>

#include "base/clock.h"
#include "nic/wire/control_frame.h"
#include "worker/membership.h"
#include "worker/session.h"
#include "worker/version.h"

namespace pbox::worker {
namespace {

constexpr uint64_t kJoinHeartbeatNs = 1'000'000'000;
// The box ends the gathering at the job's time-out and says who is missing: leave it the time to.
constexpr uint64_t kAnswerMarginNs = 2'000'000'000;

}  // namespace

void Membership::begin(uint64_t now_ns) {
  phase_ = Phase::kJoining;
  await(Step::kConnection, now_ns);
  step_deadline_ns_ = UINT64_MAX;  // the driver's answer comes
  act(Action::Kind::kConnect).deadline_ns = now_ns + options_.join_timeout_ms * kNanosPerMilli;
}

void Membership::await(Step step, uint64_t now_ns) {
  step_ = step;
  step_deadline_ns_ = now_ns + options_.join_timeout_ms * kNanosPerMilli + kAnswerMarginNs;
}

void Membership::check_join(uint64_t now_ns) {
  if (now_ns < step_deadline_ns_) return;
  const char* question = step_ == Step::kSession ? "JOIN" : "the worker";
  fail({ErrorCode::kTimeout, "box " + options_.box + " did not answer " + question + " of job '" +
                                 options_.job + "' within " +
                                 std::to_string(options_.join_timeout_ms) + " ms"});
}

void Membership::on_connected(const nic::Endpoint& peer, uint64_t now_ns) {
  if (!awaits(Step::kConnection)) return;
  peer_ = peer;
  await(Step::kDataAddresses, now_ns);
  send().mutable_ask_data_addresses();
}

void Membership::on_data_addresses(const control::DataAddresses& answer) {
  if (!awaits(Step::kDataAddresses)) return;
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
  step_ = Step::kPathMtu;
  step_deadline_ns_ = UINT64_MAX;  // the driver's answer comes
  act(Action::Kind::kMeasurePath).addresses = std::move(addresses);
}

void Membership::on_path_mtu(const Result<uint32_t>& path_mtu, uint64_t now_ns) {
  if (!awaits(Step::kPathMtu)) return;
  if (!path_mtu) return fail(path_mtu.error());
  send() = join_message(*path_mtu);
  await(Step::kSession, now_ns);
  heartbeat_interval_ns_ = kJoinHeartbeatNs;
  heartbeat_due_ns_ = now_ns + heartbeat_interval_ns_;
}

control::WorkerMessage Membership::join_message(uint32_t path_mtu) const {
  control::WorkerMessage message;
  control::Join& join = *message.mutable_join();
  join.set_protocol_version(wire::kControlProtocolVersion);
  join.set_job(options_.job);
  join.set_rank(options_.rank);
  join.set_world_size(options_.world_size);
  join.set_mode(options_.optimize ? 1 : 0);
  join.set_reduction(options_.mean ? 1 : 0);
  if (options_.optimize) *join.mutable_optimizer() = optimizer_;
  join.set_chunk_bytes(options_.chunk_bytes);
  join.set_path_mtu(options_.path_mtu != 0 ? options_.path_mtu : path_mtu);
  join.set_join_timeout_ms(options_.join_timeout_ms);
  join.set_lost_timeout_ms(options_.lost_timeout_ms);
  join.set_software(std::string("libpbox ") + kVersion);
  for (const TensorSpec& spec : tensors_) {
    control::Tensor& tensor = *join.add_tensors();
    tensor.set_name(spec.name);
    tensor.set_elements(spec.elements);
    tensor.set_dtype(static_cast<uint32_t>(spec.dtype));
    tensor.set_priority(spec.priority);
    tensor.set_lr_scale(spec.lr_scale);
    tensor.set_has_weight_decay(spec.weight_decay >= 0);
    tensor.set_weight_decay(std::max(0.0f, spec.weight_decay));
  }
  return message;
}

void Membership::on_session(const control::Session& session, uint64_t now_ns) {
  if (!awaits(Step::kSession)) return;
  auto spec = parse_session(session, tensors_, peer_);
  if (!spec) return fail(spec.error());
  session_ = session;
  spec_ = std::move(*spec);
  spec_.jitter_seed = options_.seed;
  if (options_.window_bytes > 0) spec_.window_bytes = options_.window_bytes;
  heartbeat_interval_ns_ = std::max(session.heartbeat_interval_ms(), 10u) * kNanosPerMilli;
  heartbeat_due_ns_ = std::min(heartbeat_due_ns_, now_ns + heartbeat_interval_ns_);
  dead_after_ns_ = std::max(session.dead_after_ms(), 100u) * kNanosPerMilli;
  step_ = Step::kTransport;
  step_deadline_ns_ = UINT64_MAX;  // the driver's answer comes
  Action& open = act(Action::Kind::kOpenTransport);
  open.session = spec_;
  open.deadline_ns = now_ns + options_.join_timeout_ms * kNanosPerMilli;
}

void Membership::on_transport_open(const Result<TransportFacts>& facts, uint64_t now_ns) {
  if (!awaits(Step::kTransport)) return;
  if (!facts) return fail(facts.error());
  PBOX_CHECK(facts->lanes.size() == spec_.pipelines.size());
  spec_.rto_floor_ns = facts->rto_floor_ns;
  for (size_t index = 0; index < spec_.pipelines.size(); ++index) {
    const TransportFacts::Lane& lane = facts->lanes[index];
    SessionSpec::Pipeline& pipeline = spec_.pipelines[index];
    pipeline.first_packet_number = lane.first_packet_number;
    // The window bounds the results in flight too, so it must fit what this side can receive.
    pipeline.credit_bytes = std::min(pipeline.credit_bytes, lane.receivable_bytes);
    spec_.window_bytes = std::min(spec_.window_bytes, lane.receivable_bytes);
  }
  core_.emplace(spec_, tensors_);
  phase_ = Phase::kRunning;
  heard_ns_ = now_ns;
}

}  // namespace pbox::worker
