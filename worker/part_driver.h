// Drives one membership (membership.h): its control connection, its transport, and the actions
// between them. Runs on the thread that joins until the join is over, then on the I/O thread.
#pragma once

#include <poll.h>

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "worker/membership/membership.h"
#include "worker/protocol/send_turns.h"
#include "worker/transport/box_addresses.h"
#include "worker/transport/control_channel.h"
#include "worker/transport/lane_opener.h"
#include "worker/transport/tls_library.h"
#include "worker/transport/transport.h"

namespace pbox::worker {

class PartDriver {
 public:
  // `membership` and `addresses` must outlive the driver. `ports`: at least one, each in the syntax
  // of open_transport; if one cannot be opened or fails, the next is used. `options`: the
  // membership's. `keys`: null if control connections have no TLS. `heap`: see Opening.
  PartDriver(Membership& membership, BoxAddresses& addresses, std::vector<std::string> ports,
             const MembershipOptions& options, std::shared_ptr<const WorkerKeys> keys = nullptr,
             const SharedHeap* heap = nullptr)
      : membership_(membership),
        addresses_(addresses),
        keys_(std::move(keys)),
        heap_(heap),
        choice_{.ports = std::move(ports)},
        can_resume_(can_resume(options)),
        may_disconnect_(can_resume_ && options.on_worker_lost != LostPolicy::kAbort) {}

  // Serves the control side: takes the box's messages, reports the time, and carries out the
  // membership's actions.
  void pump(uint64_t now_ns);
  // Carries out the membership's actions in order. While the transport is being opened, those that
  // need it wait.
  void perform_actions();
  // Ends the opening of a transport, and waits until its thread does nothing any more.
  void end_opening();
  // Treats the connections that use one of these addresses as broken. This host has lost the
  // addresses, so nothing can leave by them any more. A session that cannot be resumed goes on if
  // the address comes back before the box counts as silent.
  void on_addresses_lost(std::span<const nic::Endpoint> lost, uint64_t now_ns);
  // Moves packets, on the data path: receive(), then send() for lanes in the order that SendTurns
  // says, then run_timers(). receive() returns the number of packets; the others return whether
  // there was anything to do. A lane that had no packet is looked at again when its descriptor is
  // ready, and from time to time.
  size_t receive(uint64_t now_ns);
  bool run_timers(uint64_t now_ns);
  // Adds the lanes that may send; `part` is the index of this part.
  void add_lanes(size_t part, uint64_t now_ns, SendTurns& turns) const;
  // Sends at most one burst. Returns false if nothing was sent. `next` becomes the priority of what
  // the lane could send next; nullopt if it is blocked or done.
  bool send(uint32_t lane, uint64_t now_ns, std::optional<int32_t>& next);
  // Writes what the control connection still has to send, then reads until the box has closed it.
  // Until then it adds to `waits` what to wait for. If this side closed first, with data unread,
  // the connection would be reset and data could be lost that the box has not read yet.
  void end_control(std::vector<pollfd>& waits);

  // Returns when pump() or run_timers() must be called although no descriptor is ready.
  uint64_t next_deadline_ns() const;
  // Returns whether some lane has no descriptor to wait for.
  bool must_poll() const { return must_poll_; }
  // Memory for the current transport and all later ones. If add_memory() returns a registrar, the
  // caller registers the memory with it, on a thread that may wait, and passes the result to
  // give_memory(), which takes it if the transport is still the same.
  std::shared_ptr<MemoryRegistrar> add_memory(const std::byte* memory, size_t bytes);
  void give_memory(const std::byte* memory, const std::shared_ptr<MemoryRegistrar>& registrar,
                   Result<std::unique_ptr<DeviceMemory>>& registered);
  // Like Transport::remove_memory. The caller destroys `released` on a thread that may wait.
  bool remove_memory(const std::byte* memory, bool force, std::unique_ptr<DeviceMemory>& released);
  // Returns the counts of all transports so far, summed.
  PayloadCounts payload_counts() const;
  // Number of ports that were given up for the next one.
  size_t ports_given_up() const { return choice_.given_up; }
  void add_control_wait(std::vector<pollfd>& waits) const;
  // Adds a descriptor for each lane, which may be -1.
  void add_lane_waits(std::vector<pollfd>& waits) const;
  // Notes which lanes are ready, after a wait for their descriptors, which begin at waits[first].
  // Moves `first` past them.
  void note_ready(std::span<const pollfd> waits, size_t& first, uint64_t now_ns);
  void look_at_all_lanes() { is_quiet_.clear(); }

 private:
  void perform(const Action& action);
  void connect(const Action& action);
  void advance_connection(uint64_t now_ns);
  void send_transport_requests();
  void give_answer(const proto::QueuePairs& answer);
  void leave_failed_port(uint64_t now_ns);
  void leave_lost_path(uint64_t now_ns);
  void fail_connection(const Error& why, uint64_t now_ns);
  Status open_port();
  void close_transport();
  Result<uint32_t> narrowest_path(Transport& transport,
                                  const std::vector<nic::Endpoint>& addresses) const;
  Result<uint32_t> narrowest_path(const std::vector<nic::Endpoint>& addresses);
  void open_lanes(const Action& action);
  void advance_opening();
  void take_opened(LaneOpener::Outcome outcome);

  Membership& membership_;
  BoxAddresses& addresses_;
  std::shared_ptr<const WorkerKeys> keys_;
  const SharedHeap* heap_;
  PortChoice choice_;
  bool can_resume_;
  bool may_disconnect_;  // the job goes on if the box sees this worker disconnect
  std::deque<Action> pending_actions_;
  std::optional<LaneOpener> opener_;  // has the transport while its lanes are being opened
  ControlTarget target_;              // the box that is being connected to
  std::optional<ControlChannel> channel_;
  std::unique_ptr<seal::SessionKeys> session_keys_;  // the newest connection's; null without TLS
  uint64_t connect_by_ns_ = 0;  // deadline of the connection that is being made; otherwise 0
  Status sent_ = ok_status();   // result of the last write to the channel
  std::unique_ptr<Transport> transport_;
  bool is_open_ = false;  // whether the transport is open
  std::map<const std::byte*, size_t> memory_;
  PayloadCounts closed_;  // counts of the transports that were closed
  bool must_poll_ = false;
  bool received_any_ = false;      // in the last receive()
  std::vector<char> is_quiet_;     // by lane: it had no packet when it was last looked at
  uint64_t all_looked_at_ns_ = 0;  // when all lanes' descriptors or packets were last looked at
};

}  // namespace pbox::worker
