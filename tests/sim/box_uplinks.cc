#include "tests/sim/box_uplinks.h"

#include <algorithm>
#include <utility>

#include "appliance/control/job_relay.h"
#include "base/clock.h"
#include "tests/sim/worker.h"

namespace pbox::sim {
namespace {

// Each lane has its own range of ports, so that a late packet reaches its addressee or no process.
constexpr uint32_t kLaneFirstPort = 30'000;
constexpr uint32_t kPortsEach = 8;
constexpr uint32_t kRanges = 4'000;
constexpr uint64_t kAskAgainNs = 500 * kNanosPerMilli;

JobModel& model_of(const Rack& rack, const std::string& job) {
  const auto found = std::find_if(rack.jobs.begin(), rack.jobs.end(),
                                  [&](const auto& model) { return model->name == job; });
  PBOX_CHECK(found != rack.jobs.end());
  return **found;
}

// Makes a lane's membership. It sets the options that relay::UplinkLane and pbox_create_uplink set;
// all others have their defaults.
std::unique_ptr<worker::Membership> membership_of(const Rack& rack, HostId box,
                                                  const control::RelaySpec& spec,
                                                  const UplinkMember::Plan& plan,
                                                  std::shared_ptr<worker::SendPaths> paths) {
  const HostId top = rack.options.top();
  const uint64_t now_ns = rack.queue.now_ns();
  worker::MembershipOptions options;
  options.job = spec.job;
  options.box = address_of_box(top);
  options.box_name = name_of_box(top);
  options.rank = box;
  options.world_size = top;
  options.part = plan.part;
  options.parts = plan.parts;
  options.filled_parts.clear();
  for (uint32_t part = 0; part < plan.parts; ++part) options.filled_parts.push_back(part);
  options.workers = spec.workers;
  options.caller_keeps_results = true;
  options.optimize = spec.mode == pipeline::Mode::kOptimize;
  options.mean = spec.reduction == pipeline::Reduction::kMean;
  options.chunk_bytes = limits::kChunkBytesDefault;
  options.numerics = spec.numerics;
  options.lost_timeout_ms = spec.lost_timeout_ms;
  options.guard.policy = spec.guard;
  options.join_timeout_ms = static_cast<uint32_t>(
      (plan.deadline_ns - std::min(plan.deadline_ns, now_ns)) / kNanosPerMilli + 1);
  options.paths = std::move(paths);
  options.incarnation = uint64_t{client_of(rack.options, box)} << 32 | plan.number;
  options.seed = rack.options.seed * 77 + options.incarnation;
  std::vector<worker::TensorSpec> tensors;
  for (const uint32_t id : plan.chunks) {
    const control::RelayedChunk& chunk = spec.chunks[id];
    tensors.push_back({.name = chunk.name,
                       .elements = chunk.elements,
                       .dtype = wire::Dtype::kF32,
                       .priority = chunk.priority});
    if (!options.optimize) continue;
    tensors.back().lr_scale = chunk.lr_scale;
    tensors.back().weight_decay = chunk.weight_decay;
  }
  return std::make_unique<worker::Membership>(
      options, std::move(tensors),
      options.optimize ? optimizer_message(spec.optimizer) : proto::Optimizer());
}

// The object that the registry holds; it forwards to a JobUplink.
class UplinkRelay final : public control::Relay {
 public:
  explicit UplinkRelay(JobUplink& job) : job_(job) {}
  ~UplinkRelay() override { job_.leave(reason_); }
  void seed(std::vector<std::vector<float>> /*values*/) override { PBOX_CHECK(false); }
  void run(std::vector<control::RelayLane> rings) override { job_.run(rings); }
  void set_priorities(std::vector<int32_t> by_chunk) override { job_.set_priorities(by_chunk); }
  control::RelayView view() const override { return job_.view(); }
  uint32_t lane_count() const override { return job_.lane_count(); }
  uint8_t lane_of(uint32_t chunk) const override { return job_.lane_of(chunk); }
  void set_reason(const std::string& reason) override { reason_ = reason; }

 private:
  JobUplink& job_;
  std::string reason_;
};

}  // namespace

UplinkMember::UplinkMember(Rack& rack, JobUplink& job, Plan plan)
    : Member(rack, {.process = std::make_shared<Process>(rack, client_of(rack.options, job.box())),
                    .first_port = static_cast<uint16_t>(kLaneFirstPort +
                                                        kPortsEach * (plan.number % kRanges))}),
      job_(job),
      plan_(std::move(plan)),
      ring_of_(plan_.chunks.size()),
      tensor_of_(job.spec().chunks.size(), UINT32_MAX) {
  for (uint32_t tensor = 0; tensor < plan_.chunks.size(); ++tensor) {
    tensor_of_[plan_.chunks[tensor]] = tensor;
  }
  begin(membership_of(rack, job.box(), job.spec(), plan_, process_->paths()));
}

std::string UplinkMember::who() const {
  return "box " + std::to_string(job_.box()) + " lane " + std::to_string(plan_.number) + " of " +
         job_.spec().job;
}

void UplinkMember::run(std::vector<control::RelayLane> rings) {
  rings_ = std::move(rings);
  for (const control::RelayLane& ring : rings_) ring.uplink->open(-1);
  thread().wake_soon();
}

void UplinkMember::set_priorities(const std::vector<int32_t>& by_chunk) {
  if (over_ || membership_ == nullptr) return;
  std::vector<int32_t> by_tensor;
  for (const uint32_t chunk : plan_.chunks) by_tensor.push_back(by_chunk[chunk]);
  membership_->ask_priorities(wire::PriorityPolicy::kExplicit, by_tensor);
  perform();
}

void UplinkMember::leave(const std::string& reason) {
  rings_.clear();
  if (over_ || membership_ == nullptr) return;
  rack_.say(who(), [] { return "leaves"; });
  membership_->leave(reason);
  perform();
}

void UplinkMember::crash() {
  rings_.clear();
  if (!over_) forget();
}

uint64_t UplinkMember::start_operations(uint64_t /*now_ns*/) {
  if (!std::exchange(has_joined_, true)) job_.joined();
  pipeline::Uplink::Sum sum;
  for (size_t ring = 0; ring < rings_.size(); ++ring) {
    while (rings_[ring].uplink->next(sum)) {
      const uint32_t tensor = tensor_of_[sum.chunk];
      ring_of_[tensor] = ring;
      ++started_;
      const bool optimizes = job_.spec().mode == pipeline::Mode::kOptimize;
      membership_->start(
          {.tensor = tensor,
           .input = reinterpret_cast<const std::byte*>(sum.values),
           .output = reinterpret_cast<std::byte*>(sum.result),
           .initial_weights = optimizes && membership_->exchange()->round(tensor) == 0});
    }
  }
  return UINT64_MAX;
}

bool UplinkMember::complete_operations(worker::Exchange& exchange, uint64_t /*now_ns*/) {
  const auto done = exchange.take_completed();
  for (const uint32_t tensor : done) {
    ++relayed_;
    const control::RelayLane& ring = rings_[ring_of_[tensor]];
    ring.uplink->give_back(plan_.chunks[tensor]);
    ring.wake();
  }
  return !done.empty();
}

// Each tensor of a lane is a chunk of the job.
void UplinkMember::on_session(const worker::SessionSpec& session) {
  JobModel& model = model_of(rack_, job_.spec().job);
  if (model.options.mode == pipeline::Mode::kAggregate) return;
  std::vector<uint32_t> chunks, rounds(model.chunks.size());
  for (const uint32_t tensor : session.chunks_to_restore) {
    chunks.push_back(plan_.chunks[tensor]);
    rounds[chunks.back()] = session.open_rounds[tensor];
  }
  model.give_back(chunks, rounds);
}

void UplinkMember::end_if_over() {
  const auto why = end_with_membership();
  if (why) rack_.queue.after(0, [this, why] { job_.failed(*why); });
}

JobUplink::JobUplink(Rack& rack, HostId box, control::RelaySpec spec,
                     std::function<void(Status)> tell, uint32_t& next_number)
    : rack_(rack),
      box_(box),
      spec_(std::move(spec)),
      tell_(std::move(tell)),
      next_number_(next_number),
      deadline_ns_(rack.queue.now_ns() + spec_.join_timeout_ns) {
  try_join();
}

void JobUplink::try_join() {
  const auto chunks = static_cast<uint32_t>(spec_.chunks.size());
  const uint32_t count = std::min(rack_.options.pipelines_of(rack_.options.top()), chunks);
  lane_of_ = control::uplink_lanes(spec_, count);
  lanes_.clear();
  for (uint32_t lane = 0; lane < count; ++lane) {
    UplinkMember::Plan plan{
        .number = next_number_++, .part = lane, .parts = count, .deadline_ns = deadline_ns_};
    for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
      if (lane_of_[chunk] == lane) plan.chunks.push_back(chunk);
    }
    all_lanes_.push_back(std::make_unique<UplinkMember>(rack_, *this, std::move(plan)));
    lanes_.push_back(all_lanes_.back().get());
  }
}

void JobUplink::joined() {
  if (tell_ == nullptr || is_joined_) return;
  is_joined_ = std::all_of(lanes_.begin(), lanes_.end(),
                           [](const UplinkMember* lane) { return lane->has_joined(); });
  if (is_joined_) tell(ok_status());
}

// Reports the first error only. A lane that fails while the job joins ends the other lanes.
void JobUplink::failed(const Error& why) {
  if (tell_ == nullptr) return;
  if (is_joined_) return tell(why);
  for (UplinkMember* lane : std::exchange(lanes_, {})) lane->leave("");
  const bool is_away = why.code == ErrorCode::kUnavailable || why.code == ErrorCode::kBoxLost;
  if (!is_away || rack_.queue.now_ns() >= deadline_ns_) return tell(why);
  rack_.queue.after(kAskAgainNs, [this] {
    if (tell_ != nullptr && lanes_.empty()) try_join();
  });
}

void JobUplink::run(const std::vector<control::RelayLane>& rings) {
  std::vector<std::vector<control::RelayLane>> by_lane(lanes_.size());
  for (const control::RelayLane& ring : rings) by_lane[ring.lane].push_back(ring);
  for (size_t lane = 0; lane < lanes_.size(); ++lane) lanes_[lane]->run(std::move(by_lane[lane]));
}

void JobUplink::set_priorities(const std::vector<int32_t>& by_chunk) {
  for (UplinkMember* lane : lanes_) lane->set_priorities(by_chunk);
}

control::RelayView JobUplink::view() const {
  control::RelayView view{.box = address_of_box(rack_.options.top()),
                          .rank = box_,
                          .racks = rack_.options.top(),
                          .is_joined = is_joined_};
  if (!view.is_joined) return view;
  view.workers = lanes_.front()->workers();
  for (const UplinkMember* lane : lanes_) {
    view.chunks_relayed += lane->relayed();
    view.chunks_in_flight += static_cast<uint32_t>(lane->started() - lane->relayed());
  }
  return view;
}

void JobUplink::leave(const std::string& reason) {
  tell_ = nullptr;
  for (UplinkMember* lane : lanes_) lane->leave(reason);
}

void JobUplink::crash() {
  tell_ = nullptr;
  for (const auto& lane : all_lanes_) lane->crash();
}

// Calls `tell_` on the box's control thread, after the current event. Nothing is reported after an
// error.
void JobUplink::tell(const Status& status) {
  rack_.queue.after(0, [this, status] {
    if (tell_ == nullptr) return;
    const auto tell = status ? tell_ : std::exchange(tell_, nullptr);
    tell(status);
  });
}

std::unique_ptr<control::Relay> BoxUplinks::join(control::RelaySpec spec,
                                                 std::function<void(Status)> on_change) {
  const auto tell = [this, on_change = std::move(on_change)](const Status& status) {
    on_change(status);
    on_done_();
  };
  jobs_.push_back(std::make_unique<JobUplink>(rack_, box_, std::move(spec), tell, next_number_));
  return std::make_unique<UplinkRelay>(*jobs_.back());
}

void BoxUplinks::wake() {
  for (const auto& job : jobs_) {
    job->for_lanes([](UplinkMember& lane) { lane.wake(); });
  }
}

void BoxUplinks::crash() {
  for (const auto& job : jobs_) job->crash();
}

void BoxUplinks::pause(uint64_t length_ns) {
  for (const auto& job : jobs_) {
    job->for_lanes([=](UplinkMember& lane) { lane.process().thread().pause(length_ns); });
  }
}

void BoxUplinks::jump(uint64_t ahead_ns) {
  for (const auto& job : jobs_) {
    job->for_lanes([=](UplinkMember& lane) { lane.process().thread().jump(ahead_ns); });
  }
}

Member* BoxUplinks::member(ConnectionId id) const {
  Member* found = nullptr;
  for (const auto& job : jobs_) {
    job->for_lanes([&](UplinkMember& lane) {
      if (lane.has(id)) found = &lane;
    });
  }
  return found;
}

}  // namespace pbox::sim
