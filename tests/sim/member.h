// A member of a job: the product's membership and exchange over simulated ports and connections,
// driven as libpbox's client drives them.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tests/sim/burst_check.h"
#include "tests/sim/credit_watch.h"
#include "tests/sim/forger.h"
#include "tests/sim/process.h"
#include "worker/membership/membership.h"

namespace pbox::sim {

class Member {
 public:
  virtual ~Member() = default;

  bool has(ConnectionId id) const { return id != 0 && id == connection_; }
  // These ignore events of connections that are not this member's.
  virtual void on_connected(ConnectionId id);
  virtual void on_control_message(ConnectionId id, const std::string& body);
  virtual void on_closed(ConnectionId id, const std::string& reason);

  // The member's process calls the next three functions in each turn, in this order.
  //
  // Reports the time, starts operations and receives packets. Returns the lanes that may send; none
  // without a session. `part`: index of this member in the process.
  std::span<const LaneTurn> begin_turn(size_t part, uint64_t now_ns);
  // Sends one burst at most. Returns the priority of what the lane could send next; nothing if it
  // is blocked or done.
  std::optional<int32_t> send(uint32_t lane, uint64_t now_ns);
  // Runs the timers, completes operations and reports changes. Sets `is_busy` if there is more to
  // do at once. Returns when to call it next; UINT64_MAX means on the next event.
  uint64_t end_turn(uint64_t now_ns, bool& is_busy);

  HostId host() const { return process_->host(); }
  Process& process() { return *process_; }
  // Returns true once the member has had a session.
  bool joined() const { return membership_ && membership_->exchange() != nullptr; }
  // Returns true while the member has a session.
  bool runs() const {
    return membership_ && membership_->phase() == worker::Membership::Phase::kRunning;
  }
  // Moves the member to different ports. Packets to its former ports are lost.
  void rebind();
  // Hands forged packets to one lane, which must refuse them all. Returns their number.
  uint64_t attack(uint64_t draw, Forger& forger, uint32_t bursts);

 protected:
  struct Place {
    std::shared_ptr<Process> process;
    uint16_t first_port = 0;
    uint32_t path_mtu = 1500;  // MTU of its path to boxes
  };
  Member(Rack& rack, Place place);

  virtual std::string who() const = 0;
  // Called in each turn while there is a session, before packets are moved. Returns when to call it
  // next, on this member's clock; UINT64_MAX means on the next event.
  virtual uint64_t start_operations(uint64_t now_ns) = 0;
  // Called after packets were moved. Returns whether operations were completed.
  virtual bool complete_operations(worker::Exchange& exchange, uint64_t now_ns) = 0;
  // Returns a chunk's priority and size for checks; nothing if they are not known.
  virtual std::optional<BurstCheck::Chunk> chunk(uint32_t /*id*/) const { return std::nullopt; }
  // Called when a session begins. watch() returns the object that checks the credit on a lane of
  // the session, or null.
  virtual void on_session(const worker::SessionSpec& /*session*/) {}
  virtual std::unique_ptr<CreditWatch> watch(const worker::SessionSpec& /*session*/,
                                             uint32_t /*lane*/) const {
    return nullptr;
  }
  // Called after each change, because the membership may have failed or left.
  virtual void end_if_over() = 0;

  void begin(std::unique_ptr<worker::Membership> membership);
  // Carries out the actions that the membership asks for.
  void perform();
  void hang_up();
  void close_lanes();
  // For members that end with their membership: closes everything once it has failed or left.
  // Returns the failure if there is a new one.
  std::optional<Error> end_with_membership();
  void forget();  // called when the process has died

  Thread& thread() { return process_->thread(); }

  Rack& rack_;
  std::shared_ptr<Process> process_;
  std::unique_ptr<worker::Membership> membership_;  // null while there is no process
  ConnectionId connection_ = 0;                     // 0 if there is none
  bool over_ = false;

 private:
  struct Lane {
    nic::Endpoint local;
    std::unique_ptr<SimPort> port;
    std::unique_ptr<CreditWatch> credit;  // null if credit is not checked
    BurstCheck burst = {};
    worker::SessionSpec::Pipeline pipeline = {};  // the box's pipeline to which it leads
  };

  bool receive(Lane& lane, uint32_t index, uint64_t now_ns);
  std::span<const nic::TxPacket> next_burst(uint32_t lane, uint64_t now_ns);
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
  // State of the current turn: whether packets are moved, whether some were received and whether
  // anything was done, when operations are to be started next, and the lanes that may send.
  bool exchanges_ = false, has_received_ = false, is_busy_ = false;
  uint64_t operations_due_ns_ = UINT64_MAX;
  std::vector<LaneTurn> to_send_;
};

}  // namespace pbox::sim
