// Sets up a lane between its two ends. The worker connects to a UNIX socket of the box
// (SOCK_SEQPACKET), and each end sends one message with the descriptors that the other needs. The
// connection stays open as long as the lane exists. The box wakes the worker through it. When the
// box closes it, the worker knows that the lane is closed.
//
// The socket has an abstract name, so nothing is left in a file system, and only processes of the
// box's network namespace reach it. A token identifies the worker. The box has given it to the
// worker on the control connection.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "base/numa_arena.h"
#include "base/result.h"

namespace pbox::nic {

using LaneToken = std::array<std::byte, 16>;

// The rights of a worker's lane.
struct LaneGrant {
  uint32_t spi = 0;  // the session in which it may send
  // The box reads payloads from the worker's memory only if that has at most this many bytes. A
  // malicious worker can make the box hold this much memory for each file that it shows, by naming
  // pages that it has never touched.
  uint64_t memory_bytes_max = 0;
  // Memory that the worker may read results from, until ShmPort::remove_memory(). If it is null or
  // has no file, results are copied.
  const NumaArena* results = nullptr;
};

// Message from the worker to the box. Its descriptors are the worker's segment and, if
// `memory_bytes` is not 0, the worker's memory.
struct LaneHello {
  static constexpr uint32_t kVersion = 2;
  uint32_t version = kVersion;
  uint32_t pipeline = 0;  // index of the pipeline in the session
  LaneToken token{};
  uint64_t ring_bytes = 0;    // size of each of the two rings
  uint64_t memory_bytes = 0;  // memory that the worker offers to be read in place; 0: none
};

// Message from the box to the worker. Unless it refuses, its descriptors are the box's segment, an
// eventfd that wakes the box's pipeline and, if `memory_bytes` is not 0, the box's memory.
struct LaneAnswer {
  uint32_t version = LaneHello::kVersion;
  uint32_t reads_memory = 0;        // 1: the box reads payloads from the worker's memory
  uint64_t memory_bytes = 0;        // memory that the worker reads in place; 0: none
  std::array<char, 252> refusal{};  // why the box refuses, zero-terminated; empty: it accepts
};

// Longest name of an abstract socket, in bytes.
inline constexpr size_t kLaneSocketBytesMax = 100;

// Creates a socket that listens at this abstract name. Does not block.
Result<Descriptor> listen_for_lanes(const std::string& name);
// Connects to such a socket. Fails at once if no process of this network namespace listens there.
// Does not block. Sets `would_block` if the box has too many connections to accept; then try again.
Result<Descriptor> connect_lane(const std::string& name, bool& would_block);

// Both functions send a message with its descriptors. Neither blocks.
Status send_hello(int socket, const LaneHello& hello, const std::vector<int>& descriptors);
Status send_answer(int socket, const LaneAnswer& answer, const std::vector<int>& descriptors);

// Return a message, or nothing if none has arrived. Do not block. Errors: the other end has closed
// the connection, or breaks the protocol; kResourceExhausted if this process has no descriptors
// left.
struct ReceivedHello {
  LaneHello hello;
  Descriptor segment;
  Descriptor memory = {};
};
Result<std::optional<ReceivedHello>> receive_hello(int socket);
struct ReceivedAnswer {
  LaneAnswer answer;
  Descriptor segment, bell, memory;
};
Result<std::optional<ReceivedAnswer>> receive_answer(int socket);

}  // namespace pbox::nic
