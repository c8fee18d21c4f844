#include "tests/sim/destination_check.h"

#include <algorithm>

#include "base/limits.h"
#include "tests/sim/violation.h"

namespace pbox::sim {

void DestinationCheck::received(const Packet& packet) {
  unanswered_bytes_[{host_of(packet.from), packet.from.port}] += packet.bytes.size();
}

void DestinationCheck::accepted(const wire::Header& header) {
  uint64_t& newest = newest_numbers_[header.spi];
  newest = std::max(newest, header.packet_number);
}

// Until a worker has proved an address, the box uses the source address of the newest packet from
// its host. An answer to an older packet of the same burst goes to that packet's source.
void DestinationCheck::sent(const pipeline::Session& session, const nic::TxPacket& packet) {
  if (*packet.to == session.endpoint) return;
  if (!session.is_settled && host_of(*packet.to) == host_of(session.endpoint)) return;
  if (was_made_before(packet)) return;
  const uint64_t bytes = limits::kPacketOverheadBytes + packet.header.payload_bytes;
  uint64_t& left = unanswered_bytes_[{host_of(*packet.to), packet.to->port}];
  require(left >= bytes, "an address that is not proved is sent more than came from it");
  left -= bytes;
}

// Returns whether the packet may go to an address that the worker no longer has. Packets that a
// full port has not taken yet, at most one burst, go to the address that was valid when they were
// made.
bool DestinationCheck::was_made_before(const nic::TxPacket& packet) {
  const auto found = endpoints_.find(packet.header.spi & ~wire::kSpiToWorker);
  if (found == endpoints_.end()) return false;
  Endpoints& known = found->second;
  if (*packet.to != known.now && *packet.to != known.former) return false;
  return ++known.late_packets <= limits::kBurstPackets;
}

void DestinationCheck::note(const pipeline::Session& session) {
  const auto newest = newest_numbers_.find(session.spi);
  require(session.newest_packet_number <= (newest == newest_numbers_.end() ? 0 : newest->second),
          "a packet of another epoch says where a worker is");
  Endpoints& known = endpoints_[session.spi];
  if (!session.reachable || session.endpoint == known.now) return;
  known = {session.endpoint, known.now, 0};
}

}  // namespace pbox::sim
