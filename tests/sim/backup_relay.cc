#include "tests/sim/backup_relay.h"

#include <algorithm>

#include "base/clock.h"

namespace pbox::sim {
namespace {

// Each relay has its own range of ports, so that a late packet reaches its addressee or no process.
constexpr uint32_t kRelayFirstPort = 30'000;
constexpr uint32_t kPortsEach = 8;
constexpr uint32_t kRanges = 4'000;

std::unique_ptr<worker::Membership> membership_of(const Rack& rack, HostId box, uint32_t number,
                                                  const std::string& address,
                                                  const control::RelaySpec& spec,
                                                  std::shared_ptr<worker::SendPaths> paths) {
  worker::MembershipOptions options;
  options.job = spec.job;
  options.box = address;
  options.rank = 0;
  options.world_size = 1;
  options.join_timeout_ms = static_cast<uint32_t>(spec.join_timeout_ns / kNanosPerMilli);
  options.recovery = worker::Recovery::kNone;
  options.delivery = wire::Delivery::kPull;
  options.numerics = spec.numerics;
  options.is_backup = spec.is_backup;
  options.backup_has_clocks = spec.has_clocks;
  options.paths = std::move(paths);
  options.incarnation = uint64_t{box} << 32 | number;
  options.seed = rack.options.seed * 77 + options.incarnation;
  std::vector<worker::TensorSpec> tensors;
  tensors.push_back({.name = "pbox.workers", .elements = 1, .dtype = wire::Dtype::kF32});
  for (const control::RelayedChunk& chunk : spec.chunks) {
    tensors.push_back({.name = chunk.name,
                       .elements = chunk.elements,
                       .dtype = wire::Dtype::kF32,
                       .priority = chunk.priority});
  }
  return std::make_unique<worker::Membership>(options, std::move(tensors), proto::Optimizer());
}

}  // namespace

BackupMember::BackupMember(Rack& rack, HostId box, uint32_t number, const std::string& address,
                           control::RelaySpec spec, std::function<void(Status)> tell)
    : Member(rack, {.process = std::make_shared<Process>(rack, client_of(rack.options, box)),
                    .first_port =
                        static_cast<uint16_t>(kRelayFirstPort + kPortsEach * (number % kRanges))}),
      box_(box),
      spec_(std::move(spec)),
      address_(address),
      tell_(std::move(tell)),
      lane_of_(spec_.chunks.size()) {
  begin(membership_of(rack, box, number, address, spec_, process_->paths()));
}

std::string BackupMember::who() const {
  return "box " + std::to_string(box_) + ", " + spec_.job;
}

void BackupMember::seed(std::vector<std::vector<float>> values) {
  seeds_ = std::move(values);
  seeds_started_ = false;
  thread().wake_soon();
}

void BackupMember::run(std::vector<control::RelayLane> lanes) {
  lanes_ = std::move(lanes);
  for (const control::RelayLane& lane : lanes_) {
    lane.uplink->open(-1);
  }
  thread().wake_soon();
}

control::RelayView BackupMember::view() const {
  return {.box = address_,
          .rank = 0,
          .racks = 1,
          .is_joined = is_joined_,
          .workers = static_cast<uint32_t>(all_workers_),
          .chunks_relayed = relayed_,
          .chunks_in_flight = static_cast<uint32_t>(started_ - relayed_)};
}

void BackupMember::set_priorities(const std::vector<int32_t>& by_chunk) {
  if (over_ || membership_ == nullptr) return;
  std::vector<int32_t> by_tensor(control::kTensorsBesideChunks, 0);
  by_tensor.insert(by_tensor.end(), by_chunk.begin(), by_chunk.end());
  membership_->ask_priorities(wire::PriorityPolicy::kExplicit, by_tensor);
  perform();
}

void BackupMember::leave() {
  lanes_.clear();
  tell_ = nullptr;
  if (over_ || membership_ == nullptr) return;
  rack_.say(who(), [] { return "leaves the backup job"; });
  membership_->leave();
  perform();
}

void BackupMember::crash() {
  lanes_.clear();
  tell_ = nullptr;
  if (!over_) forget();
}

uint64_t BackupMember::start_operations(uint64_t /*now_ns*/) {
  if (!std::exchange(counts_workers_, true)) {
    own_workers_ = static_cast<float>(spec_.workers);
    membership_->start({.tensor = kWorkersTensor,
                        .input = reinterpret_cast<const std::byte*>(&own_workers_),
                        .output = reinterpret_cast<std::byte*>(&all_workers_)});
  }
  if (is_joined_) start_seeds();
  start_sums();
  return UINT64_MAX;
}

bool BackupMember::complete_operations(worker::Exchange& exchange, uint64_t /*now_ns*/) {
  const auto done = exchange.take_completed();
  for (const uint32_t tensor : done) completed(tensor);
  return !done.empty();
}

// Starts the push of a chunk. The result overwrites `values`.
void BackupMember::start(uint32_t chunk, float* values) {
  auto* bytes = reinterpret_cast<std::byte*>(values);
  membership_->start(
      {.tensor = chunk + control::kTensorsBesideChunks, .input = bytes, .output = bytes});
}

void BackupMember::start_seeds() {
  if (!seeds_ || std::exchange(seeds_started_, true)) return;
  seeds_left_ = 0;
  for (uint32_t chunk = 0; chunk < seeds_->size(); ++chunk) {
    if ((*seeds_)[chunk].empty()) continue;
    ++seeds_left_;
    start(chunk, (*seeds_)[chunk].data());
  }
  if (seeds_left_ > 0) return;
  seeds_.reset();
  tell(ok_status());
}

void BackupMember::start_sums() {
  pipeline::Uplink::Sum sum;
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    while (lanes_[lane].uplink->next(sum)) {
      lane_of_[sum.chunk] = lane;
      ++started_;
      start(sum.chunk, sum.values);
    }
  }
}

void BackupMember::completed(uint32_t tensor) {
  if (tensor == kWorkersTensor) {
    is_joined_ = true;
    tell(ok_status());
  } else if (seeds_) {
    if (--seeds_left_ > 0) return;
    seeds_.reset();
    tell(ok_status());
  } else {
    const uint32_t chunk = tensor - control::kTensorsBesideChunks;
    ++relayed_;
    lanes_[lane_of_[chunk]].uplink->give_back(chunk);
    lanes_[lane_of_[chunk]].wake();
  }
}

void BackupMember::end_if_over() {
  if (const auto why = end_with_membership()) tell(*why);
}

// Calls `tell_` on the box's control thread, after the current event. The callback may call
// leave().
void BackupMember::tell(const Status& status) {
  rack_.queue.after(0, [this, status] {
    if (const auto tell = tell_) tell(status);
  });
}

}  // namespace pbox::sim
