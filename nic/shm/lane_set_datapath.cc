#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "nic/shm/lane_set.h"

namespace pbox::nic {
namespace {

// Largest number of packets from one lane before the next lane has its turn.
constexpr size_t kTurnPackets = 16;

}  // namespace

// Returns the place if its lane works, or nullptr.
LaneSet::Place* LaneSet::ready(uint32_t index) {
  if (index >= kLanesMax) return nullptr;
  Place& place = places_[index];
  if (place.state.load(std::memory_order_acquire) != State::kReady || place.is_dead) return nullptr;
  PBOX_DCHECK(place.lane != nullptr);
  return &place;
}

void LaneSet::advance_closing() {
  const uint32_t used = used_.load(std::memory_order_acquire);
  for (uint32_t index = 0; index < used; ++index) {
    if (places_[index].state.load(std::memory_order_acquire) != State::kClosing) continue;
    PBOX_DCHECK(places_[index].lane != nullptr && closing_.load(std::memory_order_relaxed) > 0);
    closing_.fetch_sub(1, std::memory_order_relaxed);
    places_[index].state.store(State::kReleased, std::memory_order_release);
  }
}

bool LaneSet::begin_sleep() {
  is_asleep_ = true;
  bool is_empty = true;
  const uint32_t used = used_.load(std::memory_order_acquire);
  PBOX_DCHECK(used <= kLanesMax);
  for (uint32_t index = 0; index < used; ++index) {
    Place* place = ready(index);
    if (place != nullptr && !place->lane->begin_sleep()) is_empty = false;
  }
  return is_empty;
}

// Takes bells off epoll's ready list without reading them. If more have rung than fit into
// `events`, the next sleep ends at once.
void LaneSet::wake_up() {
  is_asleep_ = false;
  std::array<epoll_event, 64> events;
  epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  const uint32_t used = used_.load(std::memory_order_acquire);
  for (uint32_t index = 0; index < used; ++index) {
    if (Place* place = ready(index)) place->lane->end_sleep();
  }
}

// Ends the connection, which shows the worker that its lane is closed. The worker's other lanes go
// on.
void LaneSet::give_up(Place& place, PortCounters& counters) {
  PBOX_DCHECK(!place.is_dead);
  place.is_dead = true;
  counters.add(PortCounter::kLanesBroken);
  shutdown(place.lane->connection(), SHUT_RDWR);
}

// The bytes in the ring may change at any time if the worker is malicious. So the header is copied,
// and with it the payloads whose values say where to read or write: rows of tables name their rows.
// Other payloads are only numbers to add, and whatever they become is what the worker has pushed.
void LaneSet::take(const RingReader::Packet& packet, RxPacket& received, size_t index) {
  PBOX_DCHECK(index < headers_.size() && packet.bytes >= limits::kPacketOverheadBytes);
  std::byte* const copy = headers_[index].bytes.data();
  std::memcpy(copy, packet.header, limits::kHeaderBytes);
  wire::Header header;
  std::memcpy(&header, copy, sizeof(header));
  received.bytes = packet.bytes;
  const uint32_t payload_bytes = packet.bytes - limits::kPacketOverheadBytes;
  PBOX_DCHECK(packet.payload != nullptr && packet.tag != nullptr);
  if (payload_bytes > kLaneCopiedBytesMax && (header.flags & wire::flag::kRows) == 0) {
    received.data = copy;
    received.payload = packet.payload;
    received.tag = packet.tag;
    return;
  }
  PBOX_DCHECK(packet.bytes <= limits::kPacketBytesMax);
  std::byte* const whole = copies_.get() + index * limits::kPacketBytesMax;
  std::byte* const payload = whole + limits::kHeaderBytes;
  std::memcpy(whole, copy, limits::kHeaderBytes);
  std::memcpy(payload, packet.payload, payload_bytes);
  std::memcpy(payload + payload_bytes, packet.tag, limits::kTagBytes);
  received.data = whole;
  received.payload = nullptr;
}

// Moves up to kTurnPackets packets of a lane to packets[first] and the elements behind it, and
// returns how many. Drops packets of a session that is not the worker's own.
size_t LaneSet::receive_from(Place& place, std::span<RxPacket> packets, size_t first,
                             PortCounters& counters) {
  PBOX_DCHECK(!place.is_dead && first <= packets.size());
  size_t count = 0;
  for (size_t taken = 0; taken < kTurnPackets && first + count < packets.size(); ++taken) {
    const auto packet = place.lane->next();
    if (!packet) break;
    RxPacket& received = packets[first + count];
    take(*packet, received, first + count);
    uint32_t spi = 0;
    std::memcpy(&spi, received.data + offsetof(wire::Header, spi), sizeof(spi));
    if (spi != place.spi) [[unlikely]] {
      counters.add(PortCounter::kDropSource);
      continue;
    }
    received.from = place.endpoint;
    received.to = kNoLocalAddress;
    received.to_port = 0;
    ++count;
  }
  return count;
}

size_t LaneSet::rx_burst(std::span<RxPacket> packets, PortCounters& counters) {
  PBOX_DCHECK(packets.size() <= limits::kBurstPackets);
  if (is_asleep_) wake_up();
  if (closing_.load(std::memory_order_relaxed) > 0) [[unlikely]]
    advance_closing();
  const uint32_t used = used_.load(std::memory_order_acquire);
  size_t count = 0;
  next_ = next_ + 1 < used ? next_ + 1 : 0;
  for (uint32_t step = 0; step < used; ++step) {
    const uint32_t index = next_ + step < used ? next_ + step : next_ + step - used;
    Place* place = ready(index);
    if (place == nullptr) continue;
    place->lane->reader().release();  // the packets of the last burst
    count += receive_from(*place, packets, count, counters);
    if (place->lane->is_broken()) [[unlikely]]
      give_up(*place, counters);
  }
  PBOX_DCHECK(count <= packets.size());
  return count;
}

void LaneSet::publish(Place& place, PortCounters& counters) {
  place.lane->publish();
  const uint64_t places = place.lane->places();
  PBOX_DCHECK(places >= place.places_counted);
  if (places == place.places_counted) return;
  counters.add(PortCounter::kExternalPackets, places - place.places_counted);
  place.places_counted = places;
}

void LaneSet::send(std::span<const TxPacket> packets, PortCounters& counters) {
  PBOX_DCHECK(packets.size() <= limits::kBurstPackets);
  Place* place = nullptr;
  const Endpoint* to = nullptr;
  for (const TxPacket& packet : packets) {
    PBOX_DCHECK(packet.to != nullptr && is_lane(*packet.to));
    if (to == nullptr || (packet.to != to && *packet.to != *to)) {
      if (place != nullptr) publish(*place, counters);
      to = packet.to;
      place = ready(to->port);
      if (place != nullptr && place->endpoint != *to) place = nullptr;
    }
    if (place == nullptr) {
      counters.add(PortCounter::kSendFailures);
    } else if (!place->lane->put(packet)) {
      counters.add(PortCounter::kLaneFull);
    }
  }
  if (place != nullptr) publish(*place, counters);
}

}  // namespace pbox::nic
