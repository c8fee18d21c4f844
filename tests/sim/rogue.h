// A member that violates the protocol. It joins like any other, and then sends anything: wrong
// lengths, foreign chunks, rounds long past or far ahead, NaNs, floods of requests. Sometimes it
// pushes a whole correct round, so that its job advances. It never reads the packets that it
// receives. Other jobs must not be affected.
#pragma once

#include <memory>
#include <optional>

#include "base/rng.h"
#include "tests/sim/rack.h"
#include "worker/membership/membership.h"

namespace pbox::sim {

class Rogue final : public ControlEnd {
 public:
  // `job`: the rogue is its rank 0.
  Rogue(Rack& rack, JobModel& job);

  void start();
  // Called when the rogue has been found out. Ends its connection; it sends nothing more.
  void stop();

  bool on_accept(ConnectionId, HostId) override { return false; }
  void on_connected(ConnectionId id) override;
  void on_control_message(ConnectionId id, const std::string& body) override;
  void on_closed(ConnectionId id, const std::string& reason) override;

 private:
  struct Place {
    uint32_t lane = 0;
    uint32_t chunk = 0;
    uint32_t round = 0;
    uint32_t fragment = 0;
  };

  void perform();
  void attack();
  void push_round();
  void flood();
  Place choose_place();
  void draw_shape();
  wire::Header header(const Place& place, wire::PacketType type);
  // Sends a packet with the header's payload_bytes of payload; `no_numbers`: the payload is NaNs.
  void send(const Place& place, wire::Header header, bool no_numbers);
  void name_fragments(const Place& place, wire::Header& header, std::vector<std::byte>& payload);
  void spoil(wire::Header& header);
  uint32_t fragments(uint32_t chunk) const;
  uint32_t fragment_bytes(uint32_t chunk, uint32_t fragment) const;

  Rack& rack_;
  JobModel& job_;
  Rng rng_;
  std::unique_ptr<worker::Membership> membership_;
  ConnectionId connection_ = 0;
  std::unique_ptr<seal::SessionKeys> keys_;  // null in a rack without keys
  std::optional<worker::SessionSpec> session_;
  wire::RoundShape shape_;  // the shape of its pushes to slots
  uint32_t round_ = 0;      // the next round that it pushes correctly
  bool stopped_ = false;
};

}  // namespace pbox::sim
