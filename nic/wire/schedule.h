// In which order a job's chunks go and are summed, and how results come: what workers ask for at
// JOIN and boxes abide by.
#pragma once

#include <cstdint>

namespace pbox::wire {

// Where priorities come from. Values are stable: they cross the control connection and the C ABI.
enum class PriorityPolicy : uint8_t {
  kExplicit = 0,      // as registered, unless an operation states its own
  kForwardOrder = 1,  // learned: the tensor started last is the first that the next forward needs
  kFifo = 2,          // all are equal: in the order in which they are started and finished
};
inline constexpr uint8_t kPriorityPolicyCount = 3;
inline constexpr const char* kPriorityPolicyNames[] = {"explicit", "forward-order", "fifo"};

enum class Delivery : uint8_t {
  kBroadcast = 0,  // a finished chunk is sent to every worker at once, unasked
  kPull = 1,       // a finished chunk is announced; a worker asks for the chunks of a tensor once
                   // all of them are (ps-lite's way: notify and pull)
};
inline constexpr uint8_t kDeliveryCount = 2;

enum class Numerics : uint8_t {
  kFast = 0,     // each push is added as it comes: sums of three or more may differ in last bits
  kOrdered = 1,  // in the order of ranks: equal bits in every run
};
inline constexpr uint8_t kNumericsCount = 2;
inline constexpr const char* kNumericsNames[] = {"fast", "ordered"};

}  // namespace pbox::wire
