// A member of a job: the product's membership and exchange over simulated ports and connections,
// driven as libpbox's client drives them.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/sim/credit_watch.h"
#include "tests/sim/forger.h"
#include "tests/sim/host.h"
#include "tests/sim/rack.h"
#include "worker/membership/membership.h"

namespace pbox::sim {

class Member {
 public:
  virtual ~Member() = default;

  bool has(ConnectionId id) const { return id != 0 && id == connection_; }
  // Events of connections that are not this member's are ignored.
  void on_connected(ConnectionId id);
  void on_control_message(ConnectionId id, const std::string& body);
  void on_closed(ConnectionId id, const std::string& reason);

  HostId host() const { return host_; }
  // True once it has had a session.
  bool joined() const { return membership_ && membership_->exchange() != nullptr; }
  void pause_thread(uint64_t length_ns) { thread_.pause(length_ns); }
  void jump(uint64_t ahead_ns) { thread_.jump(ahead_ns); }
  // From now on its packets come from other ports, and those to the former ports are lost.
  void rebind();
  // Hands forged packets to one lane, which must refuse them all. Returns how many.
  uint64_t attack(uint64_t draw, Forger& forger, uint32_t bursts);

 protected:
  struct Place {
    HostId host = 0;
    uint16_t first_port = 0;
    uint32_t path_mtu = 1500;  // MTU of its path to boxes
  };
  Member(Rack& rack, const Place& place);

  virtual std::string who() const = 0;
  // Called while there is a session, to do work that moves packets. Sets `busy` if there is more to
  // do at once. Otherwise returns the next time to call, on this member's clock; UINT64_MAX: on the
  // next event.
  virtual uint64_t run(worker::Exchange& exchange, uint64_t now_ns, bool& busy) = 0;
  // A session begins. watch() returns the object that checks its credit on a lane, or null.
  virtual void on_session(const worker::SessionSpec& /*session*/) {}
  virtual std::unique_ptr<CreditWatch> watch(const worker::SessionSpec& /*session*/,
                                             uint32_t /*lane*/) const {
    return nullptr;
  }
  // Called after each change, because the membership may have failed or left.
  virtual void end_if_over() = 0;

  void begin(std::unique_ptr<worker::Membership> membership);
  // Does one round of the client's I/O thread. Returns true if there was anything to do.
  bool exchange_packets(uint64_t now_ns);
  // Carries out the actions that the membership asks for.
  void perform();
  void hang_up();
  void close_lanes();
  void forget();  // as for a process that has died

  Rack& rack_;
  HostId host_;
  Thread thread_;
  std::unique_ptr<worker::Membership> membership_;  // null: no process
  ConnectionId connection_ = 0;                     // 0: none
  bool over_ = false;
  bool slow_ = false;  // takes one packet per turn, slowly

 private:
  struct Lane {
    nic::Endpoint local;
    std::unique_ptr<SimPort> port;
    std::unique_ptr<CreditWatch> credit;  // null: not checked
  };

  void turn();
  bool exchange(uint32_t lane, uint64_t now_ns);
  void perform_actions();
  void perform(worker::Action& action);
  void connect(const worker::Action& action);
  void send(const proto::WorkerMessage& message);
  void fall_back(const worker::SessionSpec& session);
  void open_lanes(const worker::SessionSpec& session);
  void open_port(Lane& lane, uint16_t port);

  uint16_t first_port_;
  uint32_t path_mtu_;
  HostId box_ = 0;  // destination of the connection
  bool is_connected_ = false;
  std::unique_ptr<seal::SessionKeys> keys_;  // the connection's; null in a rack without keys
  std::map<uint32_t, SealMirror> mirrors_;   // by spi, until the session's lanes are open
  std::vector<Lane> lanes_;
  uint64_t transport_ = 0;  // counts the transports that were opened
};

}  // namespace pbox::sim
