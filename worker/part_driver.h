// Drives one membership (membership.h): its control connection, its transport, and the actions
// between them. Runs on the thread that joins until the join is over, then on the I/O thread.
#pragma once

#include <poll.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "worker/membership/membership.h"
#include "worker/transport/control_channel.h"
#include "worker/transport/transport.h"

namespace pbox::worker {

class PartDriver {
 public:
  // `membership` must outlive the driver. `ports`: at least one, each as open_transport takes it;
  // if one cannot be opened or fails, the next is used. `is_stopping`: asked while a transport is
  // being opened; true ends that.
  PartDriver(Membership& membership, std::vector<std::string> ports,
             std::function<bool()> is_stopping)
      : membership_(membership), ports_(std::move(ports)), is_stopping_(std::move(is_stopping)) {}

  // Serves the control side: takes the box's messages, reports the time, and carries out the
  // membership's actions.
  void pump(uint64_t now_ns);
  // Carries out the membership's actions in order. While the transport is being opened this is
  // called from within, and stops at the first action that is not a message.
  void perform_actions();
  // Moves packets both ways and runs the exchange's timers. Returns whether any packet moved.
  bool exchange_packets(uint64_t now_ns);
  // Writes what the control connection still has to send, then reads until the box has closed it.
  // Until then it adds what to wait for. If this side closed first, with data unread, the
  // connection would be reset and data could be lost that the box has not read yet.
  void end_control(std::vector<pollfd>& waits);

  // When pump() or exchange_packets() must be called although no descriptor is ready.
  uint64_t next_deadline_ns() const;
  // Whether a lane has no descriptor to wait for.
  bool must_poll() const { return must_poll_; }
  // As Transport's, for the current transport and all later ones.
  Status add_memory(const std::byte* memory, size_t bytes);
  bool remove_memory(const std::byte* memory, bool force);
  // Summed over all transports so far.
  PayloadCounts payload_counts() const;
  // Number of ports that were given up for the next one.
  size_t ports_given_up() const { return port_; }
  // Adds descriptors of the control connection and of every lane. A lane's may be -1.
  void add_waits(std::vector<pollfd>& waits) const;
  void add_control_wait(std::vector<pollfd>& waits) const;

 private:
  void perform(const Action& action);
  void connect(const Action& action);
  void advance_connection(uint64_t now_ns);
  void send_transport_requests();
  void leave_failed_port(uint64_t now_ns);
  Status open_port();
  bool give_up_port(const Error& why);
  void close_transport();
  Status add_all_memory(const std::function<Status()>& keep_alive);
  Result<uint32_t> narrowest_path(Transport& transport,
                                  const std::vector<nic::Endpoint>& addresses) const;
  Result<uint32_t> narrowest_path(const std::vector<nic::Endpoint>& addresses);
  Result<TransportFacts> open_lanes(const Action& action);

  Membership& membership_;
  std::vector<std::string> ports_;
  size_t port_ = 0;  // index of the port in use
  std::function<bool()> is_stopping_;
  std::deque<Action> pending_actions_;
  bool opening_ = false;  // the transport is being opened; until it is, only messages are sent
  std::optional<ControlChannel> channel_;
  uint64_t connect_by_ns_ = 0;  // while channel_ is being connected, otherwise 0
  Status sent_ = ok_status();   // result of the last write to the channel
  std::unique_ptr<Transport> transport_;
  bool takes_memory_ = false;  // the transport is open
  std::map<const std::byte*, size_t> memory_;
  PayloadCounts closed_;                         // counts of the transports that were closed
  std::deque<proto::PortGivenUp> port_reports_;  // reports that were not sent to the box yet
  bool must_poll_ = false;
};

}  // namespace pbox::worker
