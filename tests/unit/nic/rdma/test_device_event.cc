#include <catch2/catch.hpp>

#include "nic/rdma/device_event.h"

namespace pbox::nic {

TEST_CASE("events of a device are classified by what they end") {
  CHECK(kind_of(IBV_EVENT_DEVICE_FATAL) == DeviceEventKind::kDeviceFatal);
  CHECK(kind_of(IBV_EVENT_CQ_ERR) == DeviceEventKind::kDeviceFatal);
  CHECK(kind_of(IBV_EVENT_SRQ_ERR) == DeviceEventKind::kDeviceFatal);
  CHECK(kind_of(IBV_EVENT_PORT_ERR) == DeviceEventKind::kPortDown);
  CHECK(kind_of(IBV_EVENT_PORT_ACTIVE) == DeviceEventKind::kPortUp);
  CHECK(kind_of(IBV_EVENT_QP_FATAL) == DeviceEventKind::kQueuePairFatal);
  CHECK(kind_of(IBV_EVENT_QP_REQ_ERR) == DeviceEventKind::kQueuePairFatal);
  CHECK(kind_of(IBV_EVENT_QP_ACCESS_ERR) == DeviceEventKind::kQueuePairFatal);
  CHECK(kind_of(IBV_EVENT_QP_LAST_WQE_REACHED) == DeviceEventKind::kLastReceive);
  for (const ibv_event_type harmless :
       {IBV_EVENT_GID_CHANGE, IBV_EVENT_LID_CHANGE, IBV_EVENT_PKEY_CHANGE, IBV_EVENT_SM_CHANGE,
        IBV_EVENT_COMM_EST, IBV_EVENT_SQ_DRAINED, IBV_EVENT_SRQ_LIMIT_REACHED}) {
    CHECK(kind_of(harmless) == DeviceEventKind::kOther);
  }
}

TEST_CASE("an event ends the queue pair that it names, and a device failure ends all") {
  CHECK(ends_queue_pair({.kind = DeviceEventKind::kQueuePairFatal, .queue_pair = 17, .text = ""},
                        17));
  CHECK(!ends_queue_pair({.kind = DeviceEventKind::kQueuePairFatal, .queue_pair = 18, .text = ""},
                         17));
  CHECK(ends_queue_pair({.kind = DeviceEventKind::kLastReceive, .queue_pair = 17, .text = ""}, 17));
  CHECK(
      !ends_queue_pair({.kind = DeviceEventKind::kLastReceive, .queue_pair = 18, .text = ""}, 17));
  CHECK(ends_queue_pair({.kind = DeviceEventKind::kDeviceFatal, .queue_pair = 0, .text = ""}, 17));
  for (const auto kind :
       {DeviceEventKind::kPortDown, DeviceEventKind::kPortUp, DeviceEventKind::kOther}) {
    CHECK(!ends_queue_pair({.kind = kind, .queue_pair = 17, .text = ""}, 17));
  }
}

}  // namespace pbox::nic
