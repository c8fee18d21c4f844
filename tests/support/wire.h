// A process between two interfaces that loses, repeats and reorders Ethernet frames at random from
// a seed, or tags the frames of one side with a VLAN.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "tests/support/worker_process.h"

namespace pbox::test {

struct WireOptions {
  uint64_t seed = 1;
  // One frame in this many is lost, repeated or delayed, in either direction; 0 for none.
  uint32_t lose_one_of = 0;
  uint32_t repeat_one_of = 0;
  uint32_t delay_one_of = 0;  // until 8 later frames have passed, or for 1 ms
  uint16_t vlan = 0;          // VLAN of the box's side; 0 if frames pass unchanged
};

struct WireCounts {
  std::atomic<uint64_t> lost{0};
  std::atomic<uint64_t> repeated{0};
  std::atomic<uint64_t> delayed{0};
};

class Wire {
 public:
  // Both interfaces must be up. The process ends with this object.
  Wire(const std::string& box_side, const std::string& worker_side, const WireOptions& options);

  const WireCounts& counts() const { return *counts_; }

 private:
  std::shared_ptr<WireCounts> counts_;  // shared with the child process
  WorkerProcess process_;
};

// Returns why this process may not open raw sockets; empty if it may.
std::string raw_sockets_are_impossible();

// A raw socket on an interface of this network namespace. It receives whole frames of every kind,
// except those that this host sends.
class FrameSocket {
 public:
  explicit FrameSocket(const std::string& interface);
  ~FrameSocket();
  FrameSocket(const FrameSocket&) = delete;
  FrameSocket& operator=(const FrameSocket&) = delete;

  struct Frame {
    std::string bytes;  // without a VLAN tag
    uint16_t vlan = 0;  // 0 if the frame had no tag
  };
  int fd() const { return fd_; }
  void send(const std::string& bytes) const;
  // Returns nothing after `timeout_ms`.
  std::optional<Frame> receive(int timeout_ms) const;
  const std::string& mac() const { return mac_; }  // the interface's MAC, 6 bytes

 private:
  int fd_;
  std::string mac_;
};

// Returns the frame with an 802.1Q tag.
std::string with_tag(const std::string& bytes, uint16_t vlan);

}  // namespace pbox::test
