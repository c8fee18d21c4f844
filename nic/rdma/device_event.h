// What an RDMA device says unasked, of itself or of a queue pair.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <string>

namespace pbox::nic {

enum class DeviceEventKind : uint32_t {
  kDeviceFatal,  // it does nothing any more
  kPortDown,     // connections live as long as they try again
  kPortUp,
  kQueuePairFatal,  // an error has ended a queue pair
  kLastReceive,     // a broken queue pair takes nothing more from a shared receive queue
  kOther,           // changes of addresses and the like: nothing to do
};

struct DeviceEvent {
  DeviceEventKind kind = DeviceEventKind::kOther;
  uint32_t queue_pair = 0;  // its number; 0: of none
  std::string text;         // "port error, port 1"
};

// Pure.
DeviceEventKind kind_of(ibv_event_type type);
// Whether nothing comes or goes on that queue pair from then on.
bool ends_queue_pair(const DeviceEvent& event, uint32_t number);

}  // namespace pbox::nic
