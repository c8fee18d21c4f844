// Opens a part's transport on a thread of its own: libraries are loaded, paths probed, queues found
// by trial, queue pairs connected, memory registered. All of that may wait for a box, or for the
// kernel. Meanwhile the thread that owns the membership serves the control connection and all other
// parts.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/descriptor.h"
#include "nic/wire/control.pb.h"
#include "worker/membership/membership.h"
#include "worker/transport/transport.h"

namespace pbox::worker {

// The ports of a part, in the order in which they are used.
struct PortChoice {
  std::vector<std::string> ports;  // at least one, each in the syntax of open_transport
  size_t current = 0;
  size_t given_up = 0;                          // number of ports that failed unexpectedly
  std::deque<proto::PortGivenUp> reports = {};  // reports that were not sent to the box yet

  bool is_last() const { return current + 1 == ports.size(); }
  // Switches to the next port. Reports that, unless the current port is "auto" and the box offers
  // it no shared memory. Returns false if there is no next port.
  bool give_up(const Error& why);
  // Opens the current port's transport. Gives up ports that cannot be opened. May block.
  Result<std::unique_ptr<Transport>> open_next();
};

// The thread belongs to this object; the transport belongs to the thread until take(). All
// functions are for the thread that owns the membership, and only the destructor waits.
class LaneOpener {
 public:
  struct Order {
    PortChoice choice;
    std::unique_ptr<Transport> transport;  // the current port's, not open yet
    SessionSpec session;
    uint64_t deadline_ns = 0;
    std::map<const std::byte*, size_t> memory;  // bytes by address: what to register
    const SharedHeap* heap = nullptr;           // see Opening
  };
  struct Outcome {
    Result<TransportFacts> facts = TransportFacts();
    PortChoice choice;
    std::unique_ptr<Transport> transport;  // null if there is an error and no port is left
    PayloadCounts closed;                  // counts of the transports that were given up
    std::vector<proto::QueuePairs> answers;
  };

  explicit LaneOpener(Order order);
  // Cancels, and waits until the thread has ended: at most 100 ms, or until the kernel has
  // registered the memory at hand.
  ~LaneOpener();
  LaneOpener(const LaneOpener&) = delete;
  LaneOpener& operator=(const LaneOpener&) = delete;

  int fd() const { return ready_.get(); }  // readable when there is a request or an outcome
  // Requests of the transport to the box over the control connection, and the box's answers.
  std::optional<proto::QueuePairs> take_request();
  void give_answer(const proto::QueuePairs& answer);
  // Ends the opening soon, with an error, because nobody needs it any more.
  void cancel();
  bool is_cancelled() const;
  // Returns nullopt until the thread is ready, then its outcome, once. The object is of no further
  // use afterwards.
  std::optional<Outcome> take();

  // Like PartDriver's functions. remove_memory() returns false while the device may still have the
  // memory.
  void add_memory(const std::byte* memory, size_t bytes);
  bool remove_memory(const std::byte* memory);

 private:
  void run();
  Result<TransportFacts> open();
  Status keep_alive();
  TransportFacts facts() const;
  bool has_memory_to_change() const;
  void change_memory(std::unique_lock<std::mutex>& lock);
  void wake() const;

  // Used by the thread while it runs, by the owner before and after that.
  Order order_;
  Outcome outcome_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool is_cancelled_ = false;
  bool is_ready_ = false;  // the thread has nothing to do, and waits for changed_
  bool is_taken_ = false;
  std::deque<proto::QueuePairs> requests_;
  std::vector<proto::QueuePairs> answers_;
  std::shared_ptr<MemoryRegistrar> registrar_;  // once open, if the transport needs one
  std::map<const std::byte*, size_t> memory_;   // regions to register
  std::set<const std::byte*> registered_;       // including the one that is being registered
  Descriptor ready_;
  std::thread thread_;
};

}  // namespace pbox::worker
