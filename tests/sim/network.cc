#include "tests/sim/network.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "nic/wire/crc32c.h"
#include "tests/sim/violation.h"
#include "tests/support/packet_bytes.h"

namespace pbox::sim {
namespace {

uint64_t mixed(uint64_t hash, uint64_t value) {
  return Rng(hash ^ (value * 0x9e3779b97f4a7c15ull)).next();
}

bool is_fragment(const Packet& packet) {
  wire::Header header;
  if (packet.bytes.size() < sizeof(header)) return false;
  std::memcpy(&header, packet.bytes.data(), sizeof(header));
  return header.type() == wire::PacketType::kPush || header.type() == wire::PacketType::kResult;
}

}  // namespace

HostId outsider_of(const Options& options) {
  HostId outsider = options.boxes;
  for (const JobOptions& job : options.jobs) outsider += job.part == 0 ? job.workers : 0;
  return outsider;
}

HostId client_of(const Options& options, HostId box) {
  return outsider_of(options) + 1 + box;
}

nic::Endpoint endpoint_of(HostId host, uint16_t port) {
  return {.address = {10, static_cast<uint8_t>(host >> 8), static_cast<uint8_t>(host), 1},
          .port = port};
}

HostId host_of(const nic::Endpoint& endpoint) {
  return HostId{endpoint.address[1]} << 8 | endpoint.address[2];
}

Network::Network(EventQueue& queue, const Options& options, FaultCounts& counts, bool checks)
    : queue_(queue),
      options_(options),
      faults_(options.faults),
      counts_(counts),
      rng_(options.seed ^ 0x6e65745f726e67ull),
      host_count_(client_of(options, options.boxes)),
      links_(size_t{host_count_} * host_count_),
      transmit_free_ns_(host_count_),
      receive_free_ns_(host_count_),
      cables_(host_count_),
      checks_(checks),
      has_listener_(std::any_of(
          options.episodes.begin(), options.episodes.end(),
          [](const Episode& episode) { return episode.kind == EpisodeKind::kOutsider; })) {
  for (const Cable& cable : options.cables) {
    cables_[cable.host] = std::make_unique<AccessCable>(queue, cable, options.latency_ns);
  }
}

ReceiveRing& Network::open(const nic::Endpoint& local, ReceiveRing ring) {
  const auto [place, is_new] =
      rings_.emplace(std::pair{host_of(local), local.port}, std::move(ring));
  require(is_new, [] { return "the simulator opened a socket twice"; });
  return place->second;
}

void Network::close(const nic::Endpoint& local) {
  const auto found = rings_.find({host_of(local), local.port});
  const size_t lost = found->second.waiting.size();
  waiting_ -= lost;
  for (size_t index = 0; index < lost; ++index) drop(Fault::kDropUnreachable);
  rings_.erase(found);
}

void Network::drop(Fault fault) {
  counts_.add(fault);
  ++dropped_count_;
}

void Network::note(uint64_t what, const Packet& packet) {
  const uint32_t crc = wire::crc32c(
      0, packet.bytes.data(), std::min<size_t>(packet.bytes.size(), limits::kPacketOverheadBytes));
  trace_hash_ = mixed(trace_hash_, queue_.now_ns() + what);
  trace_hash_ = mixed(trace_hash_, uint64_t{crc} << 32 | packet.bytes.size());
}

// Checks that a packet number, which is a nonce, is used only once per session. The two directions
// have different spis, and the epoch distinguishes a box's sessions from equal ones before it was
// lost.
void Network::check_packet_number(const nic::Endpoint& from, const nic::TxPacket& packet) {
  const wire::Header& header = packet.header;
  const bool to_worker = (header.spi & wire::kSpiToWorker) != 0;
  const HostId box = host_of(to_worker ? from : *packet.to);
  const uint64_t session = mixed(uint64_t{header.epoch} << 32 | header.spi, box);
  require(used_numbers_.insert(mixed(session, header.packet_number)), [&] {
    return "packet number " + std::to_string(header.packet_number) + " of spi " +
           std::to_string(header.spi) + " was used for two packets";
  });
}

void Network::send(const nic::Endpoint& from, const nic::TxPacket& packet) {
  if (checks_) check_packet_number(from, packet);
  if (spare_.empty()) spare_.emplace_back();
  std::vector<std::byte> bytes = std::move(spare_.back());
  spare_.pop_back();
  test::write_packet(packet, bytes);
  if (has_listener_) overheard_[sent_ % overheard_.size()] = {bytes, from, *packet.to};
  inject(from, *packet.to, std::move(bytes));
}

void Network::inject(const nic::Endpoint& from, const nic::Endpoint& to,
                     std::vector<std::byte> bytes, bool is_forged) {
  ++sent_;
  Packet packet{std::move(bytes), from, to, is_forged};
  note(1, packet);
  route(std::move(packet));
}

bool Network::is_dropped_fragment(const Packet& packet) const {
  wire::Header header;
  if (!dropped_ || packet.bytes.size() < sizeof(header)) return false;
  std::memcpy(&header, packet.bytes.data(), sizeof(header));
  const bool to_worker = (header.spi & wire::kSpiToWorker) != 0;
  const HostId worker = host_of(to_worker ? packet.to : packet.from);
  return header.type() == dropped_->type && header.chunk == dropped_->chunk &&
         header.fragment == dropped_->fragment && worker >= dropped_->first &&
         worker < dropped_->last;
}

std::optional<Fault> Network::loss_of(Link& link, const Packet& packet) {
  if (link.blocked) return Fault::kDropPartition;
  if (is_dropped_fragment(packet)) return Fault::kDropFragment;
  if (chance(faults_.drop)) return Fault::kDropUniform;
  link.in_burst = link.in_burst ? !chance(faults_.burst_end) : chance(faults_.burst_begin);
  if (link.in_burst) return Fault::kDropBurst;
  return std::nullopt;
}

void Network::damage(Packet& packet) {
  if (chance(faults_.truncate)) {
    counts_.add(Fault::kTruncation);
    packet.bytes.resize(rng_.below(packet.bytes.size()));
    packet.damaged = true;
  }
  if (chance(faults_.flip) && !packet.bytes.empty()) {
    counts_.add(Fault::kBitFlip);
    const uint64_t bit = rng_.below(packet.bytes.size() * 8);
    packet.bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    packet.damaged = true;
  }
  if (chance(faults_.wrong_queue) && host_of(packet.to) < options_.boxes &&
      options_.pipelines > 1) {
    counts_.add(Fault::kWrongQueue);
    packet.to.port = static_cast<uint16_t>(limits::kDataPortFirst + rng_.below(options_.pipelines));
  }
}

void Network::route(Packet packet) {
  Link& on = link(host_of(packet.from), host_of(packet.to));
  CableQueue* const cable = cable_queue(packet);
  if (cable != nullptr && is_fragment(packet)) cable->count_fragment();
  if (const auto fault = loss_of(on, packet)) {
    note(2, packet);
    drop(*fault);
    return;
  }
  if (chance(faults_.duplicate)) {
    counts_.add(Fault::kDuplicate);
    ++copied_;
    Packet copy = packet;
    damage(copy);
    transmit(on, std::move(copy), true);
  }
  damage(packet);
  if (on.clogged) {
    counts_.add(Fault::kClog);
    ++in_flight_;
    on.held.push_back(std::move(packet));
    return;
  }
  transmit(on, std::move(packet), false);
}

// Returns the time at which the packet has left its sender and entered its receiver, over links of
// finite speed.
uint64_t Network::serialised_ns(const Packet& packet) {
  if (options_.link_bytes_per_us == 0) return queue_.now_ns();
  const auto needs_ns = [&](HostId host) {
    const uint64_t links = host < options_.boxes ? options_.box_links : 1;
    return (packet.bytes.size() + kFrameHeaderBytes) * 1000 / (options_.link_bytes_per_us * links);
  };
  const HostId from = host_of(packet.from), to = host_of(packet.to);
  const uint64_t divisor = from < options_.boxes ? options_.send_divisor : 1;
  uint64_t& leaves_ns = transmit_free_ns_[from];
  leaves_ns = std::max(leaves_ns, queue_.now_ns()) + needs_ns(from) * divisor;
  uint64_t& arrives_ns = receive_free_ns_[to];
  arrives_ns = std::max(arrives_ns + needs_ns(to), leaves_ns);
  return arrives_ns;
}

// Returns the queue of the cable that the packet passes; null if it passes none.
CableQueue* Network::cable_queue(const Packet& packet) {
  const auto& sender = cables_[host_of(packet.from)];
  if (sender != nullptr) return &sender->queue(CableDirection::kToBox);
  const auto& receiver = cables_[host_of(packet.to)];
  return receiver == nullptr ? nullptr : &receiver->queue(CableDirection::kFromBox);
}

void Network::transmit(Link& link, Packet packet, bool is_copy) {
  std::optional<uint64_t> passes_ns = queue_.now_ns();
  if (CableQueue* const cable = cable_queue(packet)) {
    passes_ns = cable->pass(CableUser::kJob, packet.bytes.size(), queue_.now_ns());
  }
  if (!passes_ns) {
    note(2, packet);
    drop(Fault::kQueueFull);
    return;
  }
  uint64_t due_ns = std::max(serialised_ns(packet), *passes_ns) + options_.latency_ns;
  if (options_.jitter_ns > 0) due_ns += rng_.below(options_.jitter_ns + 1);
  if (chance(faults_.delay) || (is_copy && chance(0.5))) {
    counts_.add(Fault::kLongDelay);
    due_ns += rng_.below(faults_.delay_max_ns + 1);
  } else if (chance(faults_.reorder)) {
    counts_.add(Fault::kReorder);
    due_ns += rng_.below(8 * options_.latency_ns);
  } else {
    due_ns = link.last_due_ns = std::max(due_ns, link.last_due_ns);
  }
  if (free_slots_.empty()) {
    free_slots_.push_back(static_cast<uint32_t>(slots_.size()));
    slots_.emplace_back();
  }
  const uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  slots_[slot] = std::move(packet);
  ++in_flight_;
  queue_.at(due_ns, [this, slot] { deliver(slot); });
}

void Network::deliver(uint32_t slot) {
  Packet packet = std::move(slots_[slot]);
  free_slots_.push_back(slot);
  --in_flight_;
  note(3, packet);
  const auto found = rings_.find({host_of(packet.to), packet.to.port});
  if (found == rings_.end()) {
    drop(Fault::kDropUnreachable);
    return;
  }
  ReceiveRing& ring = found->second;
  if ((ring.slots_max > 0 && ring.waiting.size() >= ring.slots_max) ||
      ring.bytes + packet.bytes.size() > ring.bytes_max) {
    drop(Fault::kRingOverflow);
    return;
  }
  if (options_.suite != seal::Suite::kNone && !is_first(packet)) packet.damaged = true;
  ring.bytes += packet.bytes.size();
  ring.waiting.push_back(std::move(packet));
  ++waiting_;
  ring.on_arrival();
}

// Returns whether the packet is whole and no copy of it has arrived at this port before.
bool Network::is_first(const Packet& packet) {
  wire::Header header;
  if (packet.damaged || packet.bytes.size() < sizeof(header)) return false;
  std::memcpy(&header, packet.bytes.data(), sizeof(header));
  const uint64_t session = mixed(uint64_t{header.epoch} << 32 | header.spi, host_of(packet.to));
  return arrived_.insert(mixed(mixed(session, header.packet_number), packet.to.port));
}

Packet Network::take(ReceiveRing& ring) {
  Packet packet = std::move(ring.waiting.front());
  ring.waiting.pop_front();
  ring.bytes -= packet.bytes.size();
  --waiting_;
  ++taken_;
  if (tap_) tap_(packet);
  return packet;
}

bool Network::has_room(HostId host, uint64_t ahead_ns, const std::function<void()>& on_room) {
  const uint64_t free_ns = transmit_free_ns_[host];
  if (free_ns <= queue_.now_ns() || free_ns - queue_.now_ns() <= ahead_ns) return true;
  queue_.at(free_ns - ahead_ns, on_room);
  return false;
}

void Network::set_clogged(HostId from, HostId to, bool clogged) {
  Link& at = link(from, to);
  at.clogged = clogged;
  if (clogged) return;
  for (Packet& packet : std::exchange(at.held, {})) {
    --in_flight_;
    transmit(at, std::move(packet), false);
  }
}

void Network::start_flows() {
  for (auto& cable : cables_) {
    if (cable != nullptr) cable->start_flows();
  }
}

std::vector<std::array<CableUse, 2>> Network::cable_uses() const {
  std::vector<std::array<CableUse, 2>> uses;
  for (const Cable& cable : options_.cables) {
    AccessCable& access = *cables_[cable.host];
    uses.push_back(
        {access.queue(CableDirection::kToBox).use(), access.queue(CableDirection::kFromBox).use()});
  }
  return uses;
}

void Network::heal() {
  faults_ = {};
  dropped_.reset();
  for (auto& cable : cables_) {
    if (cable != nullptr) cable->heal();
  }
  for (HostId from = 0; from < host_count_; ++from) {
    for (HostId to = 0; to < host_count_; ++to) {
      link(from, to).blocked = link(from, to).in_burst = false;
      set_clogged(from, to, false);
    }
  }
}

void Network::check_conservation() const {
  const uint64_t came = sent_ + copied_;
  const uint64_t went = taken_ + dropped_count_ + in_flight_ + waiting_;
  require(came == went, [&] {
    return "conservation: " + std::to_string(came) + " packets were sent or duplicated, but " +
           std::to_string(went) + " are accounted for";
  });
}

size_t SimPort::rx_burst(std::span<nic::RxPacket> packets) {
  for (Packet& packet : held_) network_->give_back(packet);
  held_.clear();
  const size_t most = std::min<size_t>(packets.size(), burst_packets_);
  while (held_.size() < most && !ring_->waiting.empty()) held_.push_back(network_->take(*ring_));
  for (size_t index = 0; index < held_.size(); ++index) {
    const Packet& packet = held_[index];
    packets[index] = {packet.bytes.data(), static_cast<uint32_t>(packet.bytes.size()), packet.from};
  }
  packets_given_ += held_.size();
  return held_.size();
}

size_t SimPort::tx_burst(std::span<const nic::TxPacket> packets) {
  const size_t most = std::min<size_t>(packets.size(), send_packets_);
  size_t taken = 0;
  for (; taken < most; ++taken) {
    if (on_room_ && !network_->has_room(host_of(local_), send_ahead_ns_, on_room_)) break;
    if (watch_) watch_(packets[taken]);
    network_->send(local_, packets[taken]);
  }
  if (burst_watch_) burst_watch_(packets, taken);
  took_all_ = taken == packets.size();
  return taken;
}

}  // namespace pbox::sim
