// Packets that no host of the rack has made: single ones from an outside host, and bursts of forged
// ones for one port of a box or worker. A burst does not pass through the simulated network. It
// goes to the product as if it had just been polled, so ten million packets take a few seconds.
#include <cstring>

#include "pipeline/observe/counters.h"
#include "tests/sim/violation.h"
#include "tests/sim/world.h"

namespace pbox::sim {
namespace {

using pipeline::Counter;

// Counters of packets that are dropped before the box looks at any state but the session's keys.
constexpr Counter kRefusals[] = {Counter::kRejectShort,  Counter::kRejectVersion,
                                 Counter::kRejectType,   Counter::kRejectReserved,
                                 Counter::kRejectLength, Counter::kRejectTag,
                                 Counter::kRejectQueue,  Counter::kRejectSession};

uint64_t refused_by(const pipeline::Engine& engine) {
  uint64_t refused = 0;
  for (const Counter counter : kRefusals) refused += engine.counters().get(counter);
  return refused;
}

}  // namespace

// Sends packets from outside: random bytes, and well-formed packets of sessions that do not exist.
void World::send_from_outside(const Episode& episode, uint32_t left) {
  const HostId outsider = outsider_of(options_);
  const HostId box = box_of(episode.draw).host();
  const auto port = static_cast<uint16_t>(limits::kDataPortFirst + rng_.below(options_.pipelines));
  std::vector<std::byte> bytes(limits::kPacketOverheadBytes + rng_.below(64));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng_.next());
  if (rng_.below(2) == 0) {
    wire::Header header;
    std::memcpy(&header, bytes.data(), sizeof(header));
    header.set_type(static_cast<wire::PacketType>(rng_.below(wire::kPacketTypeCount)));
    header.flags = 0;
    header.payload_bytes = static_cast<uint16_t>(bytes.size() - limits::kPacketOverheadBytes);
    // Sets a session index that is too large for any session of so small a rack.
    header.spi |= wire::kSpiIndexMask;
    std::memcpy(bytes.data(), &header, sizeof(header));
    const wire::Tag tag =
        wire::make_tag({options_.payload_crc}, header, bytes.data() + sizeof(header));
    std::memcpy(bytes.data() + bytes.size() - sizeof(tag), tag.data(), sizeof(tag));
  }
  counts_.add(Fault::kOutsider);
  if (options_.suite != seal::Suite::kNone && rng_.below(2) == 0) {
    forge(endpoint_of(outsider, 666));
  } else {
    network_.inject(endpoint_of(outsider, 666), endpoint_of(box, port), std::move(bytes));
  }
  if (left == 0) return;
  queue_.after(episode.length_ns / 20, [this, &episode, left] {
    if (healed_ns_ == UINT64_MAX) send_from_outside(episode, left - 1);
  });
}

// Sends what an attacker on the path can make of an overheard packet: a copy, or a forged packet of
// the same session.
void World::forge(const nic::Endpoint& from) {
  const Packet& overheard = network_.overheard(rng_.next());
  if (overheard.bytes.empty()) return;
  std::vector<std::byte> bytes = overheard.bytes;
  const bool is_forged = rng_.below(3) != 0;
  if (is_forged) {
    wire::Header header;
    std::memcpy(&header, bytes.data(), sizeof(header));
    header.packet_number += rng_.below(2) == 0 ? 1 + rng_.below(5000) : 0;
    if (rng_.below(2) == 0) header.flags ^= wire::flag::kKeyPhase;
    if (rng_.below(4) == 0) header.flags ^= wire::flag::kEncrypted;
    if (rng_.below(4) == 0) header.round += 1;
    std::memcpy(bytes.data(), &header, sizeof(header));
    bytes[bytes.size() - 1 - rng_.below(bytes.size() - sizeof(header))] ^= std::byte{1};
  }
  network_.inject(from, overheard.to, std::move(bytes), is_forged);
}

uint64_t Box::attack(uint64_t draw, Forger& forger, uint32_t bursts) {
  if (!up()) return 0;
  const auto index = static_cast<uint32_t>(draw % pipelines_.size());
  Pipeline& target = pipelines_[index];
  pipeline::Engine& engine = *target.engine;
  // Counts the packets that are waiting already. An answer to a forgery would add one.
  const size_t unsent = engine.to_send().size();
  const uint64_t state = checker_->state_of(index);
  const uint64_t refused = refused_by(engine);
  uint64_t forged = 0;
  for (uint32_t burst = 0; burst < bursts; ++burst) {
    const auto packets = forger.burst(target.local);
    engine.on_burst(packets, target.thread->now_ns());
    forged += packets.size();
  }
  target.port->count_given(forged);
  require(refused_by(engine) - refused == forged,
          "forgery: a box did not refuse every forged packet");
  require(checker_->state_of(index) == state,
          "forgery: a packet that is not authentic changed what a box holds");
  require(engine.to_send().size() == unsent, "forgery: a box answered a forged packet");
  return forged;
}

uint64_t Member::attack(uint64_t draw, Forger& forger, uint32_t bursts) {
  using Phase = worker::Membership::Phase;
  if (membership_ == nullptr || over_ || lanes_.empty()) return 0;
  if (membership_->phase() != Phase::kRunning) return 0;
  const auto index = static_cast<uint32_t>(draw % lanes_.size());
  const uint64_t now_ns = thread().now_ns();
  worker::Exchange& exchange = *membership_->exchange();
  const size_t unsent = exchange.to_send(index, now_ns).size();
  const worker::Statistics before = exchange.statistics();
  const uint64_t deadline_ns = exchange.next_deadline_ns();
  uint64_t forged = 0;
  for (uint32_t burst = 0; burst < bursts; ++burst) {
    const auto packets = forger.burst(lanes_[index].local);
    exchange.on_burst(index, packets, now_ns);
    forged += packets.size();
  }
  const worker::Statistics after = exchange.statistics();
  require(after.rejected_packets - before.rejected_packets == forged,
          "forgery: a worker did not refuse every forged packet");
  require(after.stale_packets == before.stale_packets &&
              after.bytes_pulled == before.bytes_pulled &&
              exchange.next_deadline_ns() == deadline_ns,
          "forgery: a packet that is not authentic changed what a worker holds");
  require(exchange.to_send(index, now_ns).size() == unsent,
          "forgery: a worker answered a forged packet");
  return forged;
}

// Shows the packet to the forger. A packet that the network has led to the wrong pipeline is left
// out, because it has not reached its session.
void World::overhear(const Packet& packet) {
  wire::Header header;
  if (packet.damaged || packet.bytes.size() < sizeof(header)) return;
  std::memcpy(&header, packet.bytes.data(), sizeof(header));
  const bool to_box = host_of(packet.to) < options_.boxes;
  const uint32_t pipeline = packet.to.port - uint32_t{limits::kDataPortFirst};
  if (to_box && pipeline::spi_pipeline(header.spi) != pipeline) return;
  forger_.overhear(packet);
}

void World::attack() {
  const uint64_t draw = rng_.next();
  const uint64_t victim = (draw >> 32) % (boxes_.size() + workers_.size());
  if (victim < boxes_.size()) {
    forged_for_boxes_ += boxes_[victim]->attack(draw, forger_, options_.attack_bursts);
  } else {
    forged_for_workers_ +=
        workers_[victim - boxes_.size()]->attack(draw, forger_, options_.attack_bursts);
  }
}

}  // namespace pbox::sim
