// Checks that a pipeline's packets go to the address that a worker has proved. Any other address
// gets no more bytes than came from it. Only packets of a session's own epoch may change its
// worker's address.
#pragma once

#include <map>
#include <utility>

#include "nic/port.h"
#include "pipeline/job_shard.h"
#include "tests/sim/network.h"

namespace pbox::sim {

class DestinationCheck {
 public:
  // Called for each packet that the pipeline has received.
  void received(const Packet& packet);
  // Called if the received packet is authentic and of its session's epoch.
  void accepted(const wire::Header& header);
  // Called when a packet of the session is being sent.
  void sent(const pipeline::Session& session, const nic::TxPacket& packet);
  // Called for each session when the pipeline's turn is over.
  void note(const pipeline::Session& session);

 private:
  // The address of a session's worker at the end of the pipeline's last turn, and its previous
  // address.
  struct Endpoints {
    nic::Endpoint now, former;
    size_t late_packets = 0;  // packets sent since then to an address other than `now`
  };

  bool was_made_before(const nic::TxPacket& packet);

  // By address: the bytes received from it, less those sent to it before it was proved.
  std::map<std::pair<HostId, uint16_t>, uint64_t> unanswered_bytes_;
  std::map<uint32_t, Endpoints> endpoints_;      // by spi
  std::map<uint32_t, uint64_t> newest_numbers_;  // by spi: the highest packet number accepted
};

}  // namespace pbox::sim
