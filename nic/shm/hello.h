// How the two ends of a lane find each other: the worker connects to a UNIX socket of the box
// (SOCK_SEQPACKET), and each end sends one message with the descriptors that the other needs. The
// connection stays open as long as the lane. The box wakes the worker through it, and the worker
// sees on it that the box has closed the lane.
//
// The socket has an abstract name, so nothing is left in a file system, and only processes of the
// box's network namespace reach it. A token says which worker it is; the box has given it to that
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
  // The box reads payloads from the worker's memory if that has at most so many bytes. A malicious
  // worker can make the box hold as much, by naming pages that it has never touched.
  uint64_t memory_bytes_max = 0;
  // Memory that the worker may read results from; null, or without a file: results are copied. It
  // stays until ShmPort::remove_memory().
  const NumaArena* results = nullptr;
};

// Worker to box. Descriptors: the worker's segment, and its memory if it has some.
struct LaneHello {
  static constexpr uint32_t kVersion = 2;
  uint32_t version = kVersion;
  uint32_t pipeline = 0;  // index in the session
  LaneToken token{};
  uint64_t ring_bytes = 0;    // the size of both rings
  uint64_t memory_bytes = 0;  // memory from which the box reads payloads in place; 0: none
};

// Box to worker. Descriptors, if there is no refusal: the box's segment, an eventfd that wakes the
// box's pipeline, and the box's memory if it shows some.
struct LaneAnswer {
  uint32_t version = LaneHello::kVersion;
  uint32_t reads_memory = 0;        // 1: the box reads payloads from the worker's memory
  uint64_t memory_bytes = 0;        // memory from which the worker reads payloads in place; 0: none
  std::array<char, 252> refusal{};  // why there is no lane, zero-terminated; empty: there is one
};

// Longest name of an abstract socket, in bytes.
inline constexpr size_t kLaneSocketBytesMax = 100;

// Makes a socket with this abstract name that listens. Does not block.
Result<Descriptor> listen_for_lanes(const std::string& name);
// Connects to such a socket. Fails at once if nobody of this network namespace listens there. Does
// not block; `would_block`: the box has many connections to accept, so try again.
Result<Descriptor> connect_lane(const std::string& name, bool& would_block);

// Send a message with descriptors. Do not block.
Status send_hello(int socket, const LaneHello& hello, const std::vector<int>& descriptors);
Status send_answer(int socket, const LaneAnswer& answer, const std::vector<int>& descriptors);

// Receive a message, or nothing if none has come. Do not block. Errors: the other end has closed
// the connection, or breaks the protocol.
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
