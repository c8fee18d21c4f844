// The driver of one membership (membership.h): its control connection, its transport, and the
// actions between them. On the thread that joins until the join is over, then on the I/O thread.
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
  // `membership` outlives the driver. ports: as open_transport reads them, at least one; the next
  // is taken where one cannot be opened, or has failed. stops: asked while a transport takes its
  // time to open; true ends that.
  PartDriver(Membership& membership, std::vector<std::string> ports, std::function<bool()> stops)
      : membership_(membership), ports_(std::move(ports)), stops_(std::move(stops)) {}

  // Control: what the box says, what time demands, and what the membership wants done.
  void pump(uint64_t now_ns);
  // In order; while the transport is being opened, from within that, only up to what is no message.
  void perform_actions();
  // Packets both ways, and the core's timers. True if any moved.
  bool exchange_packets(uint64_t now_ns);
  // Writes what the control connection still has to send, and reads on until the box has closed it:
  // until then it adds what to wait for. If it were closed here before, with anything unread, it
  // would be reset, and what the box has not read yet could be lost.
  void end_control(std::vector<pollfd>& waits);

  // When pump or exchange_packets is next of use though no descriptor says so.
  uint64_t next_deadline_ns() const;
  // A lane has no descriptor to wait for.
  bool must_poll() const { return must_poll_; }
  // The caller's memory, as Transport has it, of this transport and of those that follow it.
  Status add_memory(const std::byte* memory, size_t bytes);
  bool remove_memory(const std::byte* memory, bool break_off);
  // Of all transports that it has had.
  PayloadCounts payload_counts() const;
  // Ports that it has given up.
  size_t ports_given_up() const { return port_; }
  // Descriptors of the control connection and of every lane, which may be -1.
  void add_waits(std::vector<pollfd>& waits) const;
  void add_control_wait(std::vector<pollfd>& waits) const;

 private:
  void perform(const Action& action);
  void connect(const Action& action);
  void advance_connection(uint64_t now_ns);
  void speak_for_transport();
  void leave_failed_port(uint64_t now_ns);
  Status open_port();
  bool give_up_port(const Error& why);
  void close_transport();
  Status add_all_memory(const std::function<Status()>& tend);
  Result<uint32_t> narrowest_path(Transport& transport,
                                  const std::vector<nic::Endpoint>& addresses) const;
  Result<uint32_t> narrowest_path(const std::vector<nic::Endpoint>& addresses);
  Result<TransportFacts> open_lanes(const Action& action);

  Membership& membership_;
  std::vector<std::string> ports_;
  size_t port_ = 0;  // in use
  std::function<bool()> stops_;
  std::deque<Action> to_do_;
  bool opening_ = false;  // the transport is being opened; until then only messages are sent
  std::optional<ControlChannel> channel_;
  uint64_t connect_by_ns_ = 0;  // while channel_ is being connected; else 0
  Status sent_ = ok_status();   // what writing to the channel came to
  std::unique_ptr<Transport> transport_;
  bool takes_memory_ = false;  // the transport is open
  std::map<const std::byte*, size_t> memory_;
  PayloadCounts closed_;                    // of the transports that are gone
  std::deque<proto::PortGivenUp> to_tell_;  // the box
  bool must_poll_ = false;
};

}  // namespace pbox::worker
