// Checks where a pipeline's packets go: to the address that a worker has proved. Any other address
// gets no more bytes than came from it. Only packets of a session's own epoch say where its worker
// is.
#pragma once

#include <map>
#include <utility>

#include "nic/port.h"
#include "pipeline/job_shard.h"
#include "tests/sim/network.h"

namespace pbox::sim {

class DestinationCheck {
 public:
  // The pipeline has received the packet.
  void received(const Packet& packet);
  // The packet received was authentic and of its session's epoch.
  void accepted(const wire::Header& header);
  // The session's packet is being sent.
  void sent(const pipeline::Session& session, const nic::TxPacket& packet);
  // The pipeline's turn is over.
  void note(const pipeline::Session& session);

 private:
  // The address of a session's worker at the end of the pipeline's last turn, and the one before.
  struct Endpoints {
    nic::Endpoint now, former;
    size_t late_packets = 0;  // sent since to an address that the worker no longer has
  };

  bool was_made_before(const nic::TxPacket& packet);

  std::map<std::pair<HostId, uint16_t>, uint64_t> unanswered_bytes_;  // received, by address
  std::map<uint32_t, Endpoints> endpoints_;                           // by spi
  std::map<uint32_t, uint64_t> newest_numbers_;                       // accepted, by spi
};

}  // namespace pbox::sim
