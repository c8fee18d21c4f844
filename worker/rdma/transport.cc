#include "worker/rdma/transport.h"

#include <unistd.h>

#include <algorithm>

#include "base/check.h"
#include "base/clock.h"
#include "nic/payload_memory.h"
#include "nic/rdma/memory.h"
#include "worker/process/fork_guard.h"

namespace pbox::worker {
namespace {

// A connection loses nothing while it exists. A late packet is in flight, or the peer is slow.
constexpr uint64_t kRtoFloorNs = 10 * kNanosPerMilli;
constexpr uint64_t kRetryNs = 200 * kNanosPerMilli;
constexpr uint64_t kEventPollNs = 100 * kNanosPerMilli;
constexpr uint64_t kFailedAfterNs = 5 * kNanosPerSecond;
constexpr uint32_t kBreaksMax = 3;
constexpr uint32_t kPathMtu = 65'535;
// For each lane. Three quarters of what a lane can receive bound the window.
constexpr uint32_t kReceiveSlots = 256;
constexpr uint32_t kStagingSlots = 128;
constexpr uint32_t kPeersMax = 2;  // the current one, and the previous one until it is released
constexpr useconds_t kPollUs = 1'000;

// The members are in the order of their dependencies, so the region is released first.
struct RdmaMemory : DeviceMemory {
  std::shared_ptr<nic::RdmaDevice> device;
  std::shared_ptr<nic::ProtectionDomain> domain;
  nic::MemoryRegion region;
};

class RdmaRegistrar : public MemoryRegistrar {
 public:
  RdmaRegistrar(std::shared_ptr<nic::RdmaDevice> device,
                std::shared_ptr<nic::ProtectionDomain> domain)
      : device_(std::move(device)), domain_(std::move(domain)) {}

  Result<std::unique_ptr<DeviceMemory>> add(const std::byte* memory, size_t bytes) override {
    auto region = nic::register_to_read(*device_, *domain_, memory, bytes);
    if (!region) return region.error();
    auto made = std::make_unique<RdmaMemory>();
    made->device = device_;
    made->domain = domain_;
    made->region = std::move(*region);
    return std::unique_ptr<DeviceMemory>(std::move(made));
  }

 private:
  std::shared_ptr<nic::RdmaDevice> device_;
  std::shared_ptr<nic::ProtectionDomain> domain_;
};

}  // namespace

RdmaTransport::~RdmaTransport() {
  if (!device_) return;
  forget_in_child(device_->context()->cmd_fd);
  forget_in_child(device_->context()->async_fd);
}

Result<uint32_t> RdmaTransport::path_mtu(const nic::Endpoint& /*box*/) {
  return kPathMtu;
}

Status RdmaTransport::open(const SessionSpec& session, const Opening& opening) {
  const nic::Endpoint& box = session.pipelines[0].box;
  nic::RdmaDeviceOptions options{.name = settings_.device, .gid_index = settings_.gid_index};
  if (!box.is_loopback()) options.near = box;
  auto device = nic::RdmaDevice::open(options);
  if (!device) return device.error();
  device_ = std::move(*device);
  // A child that keeps these descriptors keeps the connections alive when this process dies.
  close_in_child(device_->context()->cmd_fd);
  close_in_child(device_->context()->async_fd);
  auto domain = nic::make_protection_domain(*device_);
  if (!domain) return domain.error();
  domain_ = std::move(*domain);
  registrar_ = std::make_shared<RdmaRegistrar>(device_, domain_);
  for (size_t lane = 0; lane < session.pipelines.size(); ++lane) {
    if (const Status opened = open_lane(session, lane); !opened) return opened;
  }
  while (!is_connected()) {
    if (const Status alive = opening.keep_alive(); !alive) return alive;
    if (!refusal_.empty()) return Error{ErrorCode::kUnavailable, refusal_};
    if (monotonic_ns() >= opening.deadline_ns) {
      return Error{
          ErrorCode::kTimeout,
          "the box has not answered the request for queue pairs of device " + settings_.device};
    }
    usleep(kPollUs);
  }
  return ok_status();
}

Status RdmaTransport::open_lane(const SessionSpec& session, size_t index) {
  auto queue = nic::RdmaQueue::open({.device = device_,
                                     .hugepages = Hugepages::kNever,
                                     .receive_slots = kReceiveSlots,
                                     .staging_slots = kStagingSlots,
                                     .peers_max = kPeersMax,
                                     .domain = domain_,
                                     .payload_regions_max = limits::kMemoryRegionsMax,
                                     .signals_bursts = true});
  if (!queue) return queue.error();
  Lane lane;
  lane.queue = std::make_unique<nic::RdmaQueue>(std::move(*queue));
  receivable_bytes_ = kReceiveSlots / 4 * 3 * session.fragment_bytes;
  // The packets of a window and a quarter more, for the short packets at the ends of tensors and
  // for retransmissions.
  const uint32_t window_bytes = std::min(session.pipelines[index].credit_bytes, receivable_bytes_);
  lane.landing_slots_wanted = window_bytes / session.fragment_bytes * 5 / 4 + 1;
  lanes_.push_back(std::move(lane));
  return prepare(lanes_.back());
}

Status RdmaTransport::prepare(Lane& lane) {
  PBOX_CHECK(lane.state == Lane::State::kMissing);
  const auto prepared = lane.queue->prepare(++lane.owner);
  if (!prepared) return prepared.error();
  lane.prepared = *prepared;
  lane.prepared.own.landing_slots_wanted = lane.landing_slots_wanted;
  lane.state = Lane::State::kToAsk;
  return ok_status();
}

bool RdmaTransport::is_connected() const {
  return std::all_of(lanes_.begin(), lanes_.end(),
                     [](const Lane& lane) { return lane.state == Lane::State::kConnected; });
}

void RdmaTransport::disconnect(Lane& lane) {
  PBOX_CHECK(lane.queue != nullptr);
  lane.queue->close(lane.owner);
  lane.state = Lane::State::kMissing;
}

// Replaces queue pairs that are broken.
void RdmaTransport::reconnect_lanes(uint64_t now_ns) {
  poll_events(now_ns);
  for (Lane& lane : lanes_) {
    lane.queue->reap();
    if (lane.state == Lane::State::kConnected && lane.queue->is_broken(lane.prepared.endpoint)) {
      disconnect(lane);
      if (lane.breaks++ == 0) lane.broken_ns = now_ns;
    }
    if (lane.state != Lane::State::kMissing || now_ns < next_try_ns_) continue;
    if (const Status prepared = prepare(lane); !prepared) give_up(prepared.error().message);
  }
}

// Hands the device's events to the lanes; each takes those that concern it.
void RdmaTransport::poll_events(uint64_t now_ns) {
  if (!device_ || now_ns < next_poll_ns_) return;
  next_poll_ns_ = now_ns + kEventPollNs;
  while (const auto event = device_->next_event()) {
    for (Lane& lane : lanes_) lane.queue->on_event(*event);
  }
}

// Gives up the current attempt to connect.
void RdmaTransport::give_up(const std::string& why) {
  refusal_ = why;
  next_try_ns_ = monotonic_ns() + kRetryNs;
  for (Lane& lane : lanes_) {
    if (lane.state != Lane::State::kConnected) disconnect(lane);
  }
}

// Connections are lost occasionally. The port has failed if a connection never lasts or is refused
// for long.
bool RdmaTransport::has_failed(const Lane& lane, uint64_t now_ns) const {
  const bool is_lasting = lane.state == Lane::State::kConnected && lane.breaks < kBreaksMax;
  return lane.breaks > 0 && !is_lasting && now_ns - lane.broken_ns >= kFailedAfterNs;
}

std::optional<Error> RdmaTransport::failure() {
  const uint64_t now_ns = monotonic_ns();
  const bool any = std::any_of(lanes_.begin(), lanes_.end(),
                               [&](const Lane& lane) { return has_failed(lane, now_ns); });
  if (!any) return std::nullopt;
  return Error{ErrorCode::kUnavailable, "device " + settings_.device +
                                            " loses its queue pairs to the box again and again" +
                                            (refusal_.empty() ? std::string() : ": " + refusal_)};
}

bool RdmaTransport::take_request(proto::QueuePairs& request) {
  if (awaits_answer_) return false;
  reconnect_lanes(monotonic_ns());
  for (uint32_t index = 0; index < lanes_.size(); ++index) {
    Lane& lane = lanes_[index];
    if (lane.state != Lane::State::kToAsk) continue;
    proto::QueuePair& pair = *request.add_pairs();
    pair.set_pipeline(index);
    wire::write_queue_pair(lane.prepared.own, pair);
    lane.state = Lane::State::kAsked;
  }
  if (request.pairs().empty()) return false;
  request.set_sequence(++sequence_);
  awaits_answer_ = true;
  return true;
}

void RdmaTransport::on_answer(const proto::QueuePairs& answer) {
  if (!awaits_answer_ || answer.sequence() != sequence_) return;
  awaits_answer_ = false;
  refusal_.clear();
  if (!answer.refusal().empty()) return give_up(answer.refusal());
  for (const proto::QueuePair& pair : answer.pairs()) {
    if (pair.pipeline() >= lanes_.size()) continue;
    Lane& lane = lanes_[pair.pipeline()];
    if (lane.state != Lane::State::kAsked) continue;
    const auto peer = wire::parse_queue_pair(pair);
    if (!peer) return give_up(peer.error().message);
    const Status connected = lane.queue->complete(lane.prepared.endpoint, *peer);
    if (!connected) return give_up(connected.error().message);
    lane.state = Lane::State::kConnected;
  }
  const bool left = std::any_of(lanes_.begin(), lanes_.end(),
                                [](const Lane& lane) { return lane.state == Lane::State::kAsked; });
  if (left) give_up("the box answered only some of the requested queue pairs");
}

void RdmaTransport::add_memory(const std::byte* memory, size_t bytes,
                               Result<std::unique_ptr<DeviceMemory>> registered) {
  PBOX_CHECK(!memory_.contains(memory));
  std::unique_ptr<DeviceMemory>& kept = memory_[memory];
  if (registered) kept = std::move(*registered);
  const uint64_t key =
      kept ? static_cast<RdmaMemory&>(*kept).region->lkey : nic::PayloadMemory::kRefused;
  for (Lane& lane : lanes_) lane.queue->add_memory(memory, bytes, key);
}

// A device reads nothing any more once its queue pair is destroyed. The next reconnect_lanes()
// makes a new one.
bool RdmaTransport::remove_memory(const std::byte* memory, bool force,
                                  std::unique_ptr<DeviceMemory>& released) {
  bool is_read = false;
  for (Lane& lane : lanes_) {
    if (lane.queue->remove_memory(memory)) continue;
    is_read = true;
    if (force && lane.state == Lane::State::kConnected) disconnect(lane);
    lane.queue->reap();
  }
  if (is_read) return false;
  if (const auto kept = memory_.find(memory); kept != memory_.end()) {
    released = std::move(kept->second);
    memory_.erase(kept);
  }
  return true;
}

PayloadCounts RdmaTransport::payload_counts() const {
  PayloadCounts counts;
  for (const Lane& lane : lanes_) {
    const nic::PortCounters& of_lane = lane.queue->counters();
    const uint64_t refused = lane.queue->refused_packets();
    counts.direct += of_lane.get(nic::PortCounter::kExternalPackets);
    counts.staged += of_lane.get(nic::PortCounter::kStagedPackets) - refused;
    counts.staged_refused += refused;
  }
  return counts;
}

uint32_t RdmaTransport::receivable_bytes(uint32_t /*lane*/) const {
  return receivable_bytes_;
}

uint64_t RdmaTransport::rto_floor_ns() const {
  return kRtoFloorNs;
}

}  // namespace pbox::worker
