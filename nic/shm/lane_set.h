// The lanes of shared memory of one pipeline of a box: one for each worker on this host that has
// asked for one.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "base/descriptor.h"
#include "nic/port.h"
#include "nic/shm/lane.h"

namespace pbox::nic {

// Threads: close(), reap() and attach() belong to the control thread, everything else to the
// polling thread.
class LaneSet {
 public:
  static constexpr uint32_t kLanesMax = 256;

  LaneSet();
  ~LaneSet();
  LaneSet(const LaneSet&) = delete;
  LaneSet& operator=(const LaneSet&) = delete;

  // Adds a lane of this owner, which may send packets of session `spi` only. `bell`: the eventfd
  // that its worker writes to. Closes the owner's earlier lanes.
  Status attach(uint64_t owner, uint32_t spi, std::unique_ptr<ShmLane> lane, Descriptor bell,
                PortCounters& counters);
  // Closes the lanes of the owner. reap() frees them once the polling thread has released them.
  // Returns false if there were none.
  bool close(uint64_t owner);
  // Frees closed lanes that the polling thread has released. Returns how many are left: the polling
  // thread releases them in rx_burst.
  size_t reap();

  // Returns whether any lane was ever attached.
  bool any() const { return used_.load(std::memory_order_acquire) > 0; }
  // Receive and send as port.h says. All packets to send must be for lanes. Those for which there
  // is no room are dropped and counted.
  size_t rx_burst(std::span<RxPacket> packets, PortCounters& counters);
  void send(std::span<const TxPacket> packets, PortCounters& counters);
  // Call it before a wait for bells_fd(). Returns false if there are packets already.
  bool begin_sleep();
  // Returns an epoll instance that is readable when a worker has rung its bell. rx_burst() makes it
  // unreadable again. The owner may add descriptors of its own.
  int bells_fd() const { return epoll_.get(); }
  // Returns a descriptor that is always readable.
  int ready_fd() const { return ready_.get(); }

 private:
  // The life of a place, and the thread that makes each transition:
  //   kFree -> kReady        control thread: attach()
  //   kReady -> kClosing     control thread: close()
  //   kClosing -> kReleased  polling thread: it does not use the lane any more
  //   kReleased -> kFree     control thread: the lane is freed
  enum class State : uint32_t { kFree, kReady, kClosing, kReleased };
  struct Place {
    std::atomic<State> state{State::kFree};
    uint64_t owner = 0;  // control thread only
    uint32_t spi = 0;
    Endpoint endpoint;
    std::unique_ptr<ShmLane> lane;
    Descriptor bell;
    // Polling thread only.
    bool is_dead = false;         // the other end has broken the rules
    uint64_t places_counted = 0;  // ShmLane::places() that are in the counters
  };
  // A copy of a packet's header, which must not change once it has been checked.
  struct alignas(kCacheLineBytes) HeaderCopy {
    std::array<std::byte, kCacheLineBytes> bytes;
  };

  Place* ready(uint32_t index);
  void advance_closing();
  void wake_up();
  size_t receive_from(Place& place, std::span<RxPacket> packets, size_t first,
                      PortCounters& counters);
  void take(const RingReader::Packet& packet, RxPacket& received, size_t index);
  void give_up(Place& place, PortCounters& counters);
  static void publish(Place& place, PortCounters& counters);

  std::array<Place, kLanesMax> places_;
  std::atomic<uint32_t> used_{0};     // places at this index and above were never used
  std::atomic<uint32_t> closing_{0};  // places in kClosing
  uint32_t number_ = 0;               // number of the newest lane; control thread only
  Descriptor epoll_, ready_;
  // Polling thread only.
  uint32_t next_ = 0;       // the place that the next burst begins with
  bool is_asleep_ = false;  // between begin_sleep() and the next rx_burst()
  std::array<HeaderCopy, limits::kBurstPackets> headers_;
  std::unique_ptr<std::byte[]> copies_;  // limits::kBurstPackets whole packets; touched when used
};

}  // namespace pbox::nic
