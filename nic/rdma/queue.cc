#include "nic/rdma/queue.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/event.h"
#include "nic/rdma/connect.h"
#include "nic/rdma/queue_state.h"

namespace pbox::nic {
namespace {

// First byte of the address that names a queue pair. It makes the address multicast, and no UDP
// packet has a multicast source address.
constexpr uint8_t kMarkerByte = 0xff;
// Peers get no access to registered memory: what they send lands in posted buffers. The type is int
// because clang warns when verbs.h's macro combines two enumerations.
constexpr int kOwnAccess = IBV_ACCESS_LOCAL_WRITE;

// Returns how many completions can be pending at once. A ring of n slots has n - 1 receives and one
// window binding.
uint32_t completions_of(const RdmaQueueOptions& options, uint32_t peers) {
  return options.receive_slots + options.landing_slots + peers * kSendDepth;
}

}  // namespace

bool is_queue_pair(const Endpoint& endpoint) {
  return endpoint.ipv6 && endpoint.address[0] == kMarkerByte && endpoint.address[1] == 0;
}

uint64_t rdma_queue_bytes(const RdmaQueueOptions& options) {
  const uint64_t buffers =
      uint64_t{options.receive_slots} + options.staging_slots + options.landing_slots;
  const uint64_t copies = options.landing_slots > 0 ? limits::kBurstPackets : 0;
  return (buffers + copies) * kBufferBytes + uint64_t{options.peers_max} * kSendDepth * kHeadBytes;
}

RdmaQueue::State::State(const RdmaQueueOptions& options_in)
    : options(options_in),
      device(options_in.device),
      landing_free(options_in.landing_slots),
      payload_memory(options_in.payload_regions_max),
      peer_count(options_in.peers_max),
      peers(std::make_unique<Peer[]>(options_in.peers_max)),
      numbers(options_in.peers_max),
      held_packets(options_in.held_packets_max, options_in.peers_max) {
  received.reserve(options.receive_slots + options.landing_slots);
  held.reserve(options.receive_slots);
  held_landed.reserve(options.landing_slots);
  receive_requests.resize(limits::kBurstPackets);
  receive_pieces.resize(limits::kBurstPackets);
  for (uint32_t index = 0; index < options.staging_slots; ++index) staging_free.push_back(index);
}

RdmaQueue::State::~State() {
  for (Peer& peer : std::span(peers.get(), peer_count)) {
    peer.window.reset();
    peer.ring_memory.reset();
    peer.queue_pair.reset();
  }
}

Status RdmaQueue::State::open() {
  ibv_context* context = device->context();
  const ibv_device_attr& most = device->limits();
  const auto cqe_max = static_cast<uint32_t>(most.max_cqe);
  while (peer_count > 1 && completions_of(options, peer_count) > cqe_max) --peer_count;
  if (most.max_srq < 1 || static_cast<uint32_t>(most.max_srq_wr) < options.receive_slots ||
      most.max_sge < static_cast<int>(kSendPieces) ||
      static_cast<uint32_t>(most.max_qp_wr) < kSendDepth ||
      completions_of(options, peer_count) > cqe_max) {
    return Error{
        ErrorCode::kUnavailable,
        "RDMA device " + device->name() +
            " has too small limits for data.port = rdma: its shared receive queues have " +
            std::to_string(most.max_srq_wr) + " entries, its completion queues " +
            std::to_string(most.max_cqe) + ", " + std::to_string(most.max_sge) +
            " scatter/gather elements; needed are " + std::to_string(options.receive_slots) + ", " +
            std::to_string(completions_of(options, 1)) + " and " + std::to_string(kSendPieces)};
  }
  if (const Status able = check_landing(); !able) return able;
  domain = options.domain;
  if (!domain) {
    auto made = make_protection_domain(*device);
    if (!made) return made.error();
    domain = std::move(*made);
  }
  channel = CompletionChannel(ibv_create_comp_channel(context));
  if (!channel) return verbs_error(*device, "cannot create a completion channel", errno);
  fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK);
  completion_queue = CompletionQueue(ibv_create_cq(
      context, static_cast<int>(completions_of(options, peer_count)), nullptr, channel.get(), 0));
  if (!completion_queue) return verbs_error(*device, "cannot create a completion queue", errno);
  ibv_srq_init_attr wanted{};
  wanted.attr.max_wr = options.receive_slots;
  wanted.attr.max_sge = 1;
  receive_queue = SharedReceiveQueue(ibv_create_srq(domain->get(), &wanted));
  if (!receive_queue) return verbs_error(*device, "cannot create a shared receive queue", errno);
  auto event = create_event(true);
  if (!event) return event.error();
  ready = std::move(*event);
  if (const Status registered = register_memory(); !registered) return registered;
  return post_all_buffers();
}

Status RdmaQueue::State::register_memory() {
  auto made = NumaArena::create(rdma_queue_bytes(options), options.numa_node, options.hugepages);
  if (!made) return made.error();
  arena = std::move(*made);
  receive_buffers = arena.take(options.receive_slots * kBufferBytes);
  staging_buffers = arena.take(options.staging_slots * kBufferBytes);
  heads = arena.take(size_t{options.peers_max} * kSendDepth * kHeadBytes);
  landing = arena.take(options.landing_slots * kBufferBytes);
  if (options.landing_slots > 0) landed_copies = arena.take(limits::kBurstPackets * kBufferBytes);
  PBOX_CHECK(arena.taken() <= arena.size());
  const auto bytes = static_cast<size_t>(landing - arena.data());
  own_memory = MemoryRegion(ibv_reg_mr(domain->get(), arena.data(), bytes, kOwnAccess));
  if (own_memory) return ok_status();
  return registration_error(*device, "packet memory", bytes, errno);
}

Status RdmaQueue::State::post_all_buffers() {
  for (uint32_t index = 0; index < options.receive_slots; ++index) {
    ibv_sge piece{reinterpret_cast<uint64_t>(receive_buffers + index * kBufferBytes),
                  limits::kPacketBytesMax, own_memory->lkey};
    ibv_recv_wr request{};
    request.wr_id = index;
    request.sg_list = &piece;
    request.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    if (const int error = ibv_post_srq_recv(receive_queue.get(), &request, &bad); error != 0) {
      return verbs_error(*device, "cannot post receive buffers", error);
    }
  }
  return ok_status();
}

RdmaQueue::RdmaQueue(std::unique_ptr<State> state) : state_(std::move(state)) {}
RdmaQueue::RdmaQueue(RdmaQueue&&) noexcept = default;
RdmaQueue& RdmaQueue::operator=(RdmaQueue&&) noexcept = default;
RdmaQueue::~RdmaQueue() = default;

Result<RdmaQueue> RdmaQueue::open(const RdmaQueueOptions& options) {
  auto state = std::make_unique<State>(options);
  if (const Status opened = state->open(); !opened) return opened.error();
  return RdmaQueue(std::move(state));
}

size_t RdmaQueue::rx_burst(std::span<RxPacket> packets) {
  PBOX_DCHECK(packets.data() != nullptr || packets.empty());
  const size_t count = state_->rx_burst(packets);
  PBOX_DCHECK(count <= packets.size());
  return count;
}
size_t RdmaQueue::tx_burst(std::span<const TxPacket> packets, const Endpoint* to) {
  const size_t count = state_->tx_burst(packets, to);
  PBOX_DCHECK(count <= packets.size());
  return count;
}
int RdmaQueue::event_fd() {
  return state_->event_fd();
}
const PortCounters& RdmaQueue::counters() const {
  return state_->counters;
}
PortCounters& RdmaQueue::counters() {
  return state_->counters;
}
uint32_t RdmaQueue::receive_slots() const {
  return state_->options.receive_slots;
}
const RdmaDevice& RdmaQueue::device() const {
  return *state_->device;
}

Result<RdmaQueue::Prepared> RdmaQueue::prepare(uint64_t owner, uint32_t landing_slots_wanted) {
  State& state = *state_;
  const std::span peers(state.peers.get(), state.peer_count);
  const auto free = std::find_if(peers.begin(), peers.end(), [](const State::Peer& peer) {
    return peer.state.load(std::memory_order_acquire) == State::PeerState::kFree;
  });
  if (free == peers.end()) {
    return Error{ErrorCode::kResourceExhausted, "RDMA device " + state.device->name() + ": all " +
                                                    std::to_string(state.peer_count) +
                                                    " queue pairs of the pipeline are in use"};
  }
  PBOX_CHECK(!free->queue_pair && free->posted == free->completed);
  state.allocate_ring(*free, landing_slots_wanted);
  const bool has_ring = free->ring_slots > 0;
  auto made = make_queue_pair(
      *state.device, {.domain = state.domain->get(),
                      .completion_queue = state.completion_queue.get(),
                      .receive_queue = has_ring ? nullptr : state.receive_queue.get(),
                      .receive_depth = has_ring ? free->ring_slots - 1 : 0,
                      .send_depth = kSendDepth + (has_ring ? 1 : 0),  // + 1 for binding the window
                      .send_pieces = kSendPieces,
                      .inline_bytes = kInlineBytes});
  if (!made) {
    state.release_ring(*free);
    return made.error();
  }
  free->queue_pair = std::move(made->queue_pair);
  free->own = made->own;
  free->own.landing = state.ring_of(*free);
  free->target = {};
  free->owner = owner;
  free->number.store(made->own.number, std::memory_order_relaxed);
  free->broken.store(false, std::memory_order_relaxed);
  free->endpoint = {.address = {kMarkerByte},
                    .scope_id = made->own.number,
                    .port = static_cast<uint16_t>(free - peers.begin()),
                    .ipv6 = true};
  state.numbers.insert(made->own.number, static_cast<uint32_t>(free - peers.begin()));
  free->state.store(State::PeerState::kPrepared, std::memory_order_release);
  return Prepared{free->endpoint, free->own};
}

Status RdmaQueue::complete(const Endpoint& endpoint, const wire::QueuePairAddress& peer) {
  PBOX_CHECK(endpoint.port < state_->peer_count);
  State::Peer& own = state_->peers[endpoint.port];
  PBOX_CHECK(own.endpoint == endpoint);
  PBOX_CHECK(own.state.load(std::memory_order_relaxed) == State::PeerState::kPrepared);
  const Status connected =
      connect_queue_pair(*state_->device, *own.queue_pair.get(), own.own, peer);
  if (!connected) return connected;
  if (const Status opened = state_->open_ring(own); !opened) return opened;
  own.target = peer.landing;
  own.target_next = 0;
  state_->counters.add(PortCounter::kQueuePairs);  // only the control thread writes it
  own.state.store(State::PeerState::kReady, std::memory_order_release);
  return ok_status();
}

bool RdmaQueue::close(uint64_t owner) {
  bool any = false;
  for (State::Peer& peer : std::span(state_->peers.get(), state_->peer_count)) {
    const auto at = peer.state.load(std::memory_order_acquire);
    const bool is_open = at == State::PeerState::kPrepared || at == State::PeerState::kReady;
    if (!is_open || peer.owner != owner) continue;
    any = true;
    state_->pending_changes.fetch_add(1, std::memory_order_relaxed);
    peer.state.store(State::PeerState::kClosing, std::memory_order_release);
    fail_queue_pair(*peer.queue_pair.get());
  }
  return any;
}

size_t RdmaQueue::reap() {
  size_t left = 0;
  for (State::Peer& peer : std::span(state_->peers.get(), state_->peer_count)) {
    const auto at = peer.state.load(std::memory_order_acquire);
    using enum State::PeerState;
    if (at == kClosing || at == kReleased || at == kDestroyed) ++left;
    if (at != kReleased) continue;
    state_->numbers.erase(peer.own.number);
    state_->release_ring(peer);
    peer.queue_pair.reset();  // from now on the device does not touch its memory
    state_->pending_changes.fetch_add(1, std::memory_order_relaxed);
    peer.state.store(State::PeerState::kDestroyed, std::memory_order_release);
  }
  return left;
}

void RdmaQueue::on_event(const DeviceEvent& event) {
  for (State::Peer& peer : std::span(state_->peers.get(), state_->peer_count)) {
    const auto at = peer.state.load(std::memory_order_acquire);
    const bool is_open = at == State::PeerState::kPrepared || at == State::PeerState::kReady;
    if (!is_open || !ends_queue_pair(event, peer.own.number)) continue;
    peer.broken.store(true, std::memory_order_relaxed);
  }
}

bool RdmaQueue::is_broken(const Endpoint& endpoint) const {
  PBOX_CHECK(endpoint.port < state_->peer_count);
  return state_->peers[endpoint.port].broken.load(std::memory_order_relaxed);
}

uint32_t RdmaQueue::open_queue_pairs() const {
  const std::span peers(state_->peers.get(), state_->peer_count);
  return static_cast<uint32_t>(
      std::count_if(peers.begin(), peers.end(), [](const State::Peer& peer) {
        return peer.state.load(std::memory_order_relaxed) != State::PeerState::kFree;
      }));
}

Status RdmaQueue::add_memory(const std::byte* memory, size_t bytes) {
  State& state = *state_;
  MemoryRegion region(
      ibv_reg_mr(state.domain->get(), const_cast<std::byte*>(memory), bytes, kOwnAccess));
  if (!region) {
    return registration_error(*state.device, "a job's memory", bytes, errno);
  }
  if (!add_memory(memory, bytes, region->lkey)) return ok_status();
  state.payload_regions[memory] = std::move(region);
  return ok_status();
}

bool RdmaQueue::add_memory(const std::byte* memory, size_t bytes, uint64_t key) {
  return state_->payload_memory.add(memory, bytes, key);
}

bool RdmaQueue::remove_memory(const std::byte* memory) {
  if (!state_->payload_memory.remove(memory)) return false;
  state_->payload_regions.erase(memory);
  return true;
}

uint64_t RdmaQueue::refused_packets() const {
  return state_->refused_packets;
}

}  // namespace pbox::nic
