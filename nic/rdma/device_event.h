// Asynchronous events that an RDMA device reports about itself or about a queue pair.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <string>

namespace pbox::nic {

enum class DeviceEventKind : uint32_t {
  kDeviceFatal,  // the device has stopped working
  kPortDown,     // connections survive until their retries are exhausted
  kPortUp,
  kQueuePairFatal,  // an error has ended a queue pair
  kLastReceive,     // a broken queue pair takes no more buffers from a shared receive queue
  kOther,           // needs no action, for example a change of addresses
};

struct DeviceEvent {
  DeviceEventKind kind = DeviceEventKind::kOther;
  uint32_t queue_pair = 0;  // number of the queue pair; 0 if the event concerns none
  std::string text;         // for logs: "port error, port 1"
};

// Both functions are pure; any thread.
DeviceEventKind kind_of(ibv_event_type type);
// Returns whether the queue pair `number` neither sends nor receives after the event.
bool ends_queue_pair(const DeviceEvent& event, uint32_t number);

}  // namespace pbox::nic
