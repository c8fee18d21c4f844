// How a job's chunks are scheduled: their order, how gradients are summed, and how results are
// delivered. Workers state it in Join.
#pragma once

#include <cstdint>

namespace pbox::wire {

// The source of priorities. Values are stable: they appear on the control connection and in the C
// ABI.
enum class PriorityPolicy : uint8_t {
  kExplicit = 0,      // as registered with the tensor, unless an operation states its own
  kForwardOrder = 1,  // learned: the last tensor to start is the first that the forward pass needs
  kFifo = 2,          // all equal: in the order in which operations start and rounds finish
};
inline constexpr uint8_t kPriorityPolicyCount = 3;
inline constexpr const char* kPriorityPolicyNames[] = {"explicit", "forward-order", "fifo"};

enum class Delivery : uint8_t {
  // The box sends a finished chunk to every worker at once, without being asked.
  kBroadcast = 0,
  // The box announces a finished chunk. A worker asks for a tensor's chunks once all of them are
  // announced (notify and pull, as in ps-lite).
  kPull = 1,
};
inline constexpr uint8_t kDeliveryCount = 2;
inline constexpr const char* kDeliveryNames[] = {"broadcast", "pull"};

enum class Numerics : uint8_t {
  kFast = 0,     // adds in the order of arrival: sums of three or more may differ in the last bits
  kOrdered = 1,  // adds in the order of ranks: the same bits in every run
};
inline constexpr uint8_t kNumericsCount = 2;
inline constexpr const char* kNumericsNames[] = {"fast", "ordered"};

}  // namespace pbox::wire
