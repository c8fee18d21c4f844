#include "nic/rdma/device_event.h"

#include "nic/rdma/device.h"

namespace pbox::nic {

DeviceEventKind kind_of(ibv_event_type type) {
  switch (type) {
    case IBV_EVENT_DEVICE_FATAL: return DeviceEventKind::kDeviceFatal;
    case IBV_EVENT_PORT_ERR: return DeviceEventKind::kPortDown;
    case IBV_EVENT_PORT_ACTIVE: return DeviceEventKind::kPortUp;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR: return DeviceEventKind::kQueuePairFatal;
    case IBV_EVENT_QP_LAST_WQE_REACHED: return DeviceEventKind::kLastReceive;
    // All queue pairs use these queues, so their failure is as bad as the device's.
    case IBV_EVENT_CQ_ERR:
    case IBV_EVENT_SRQ_ERR: return DeviceEventKind::kDeviceFatal;
    default: return DeviceEventKind::kOther;
  }
}

bool ends_queue_pair(const DeviceEvent& event, uint32_t number) {
  if (event.kind == DeviceEventKind::kDeviceFatal) return true;
  const bool concerns_one_queue_pair =
      event.kind == DeviceEventKind::kQueuePairFatal || event.kind == DeviceEventKind::kLastReceive;
  return concerns_one_queue_pair && event.queue_pair == number;
}

std::optional<DeviceEvent> RdmaDevice::next_event() const {
  ibv_async_event found{};
  if (ibv_get_async_event(context(), &found) != 0) return std::nullopt;
  DeviceEvent event{.kind = kind_of(found.event_type),
                    .queue_pair = 0,
                    .text = ibv_event_type_str(found.event_type)};
  switch (found.event_type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
      event.queue_pair = found.element.qp->qp_num;
      event.text += ", queue pair " + std::to_string(event.queue_pair);
      break;
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_PORT_ACTIVE:
      event.text += ", port " + std::to_string(found.element.port_num);
      break;
    default: break;
  }
  // Acknowledge at once, because the object that the event concerns cannot be destroyed until then.
  ibv_ack_async_event(&found);
  return event;
}

}  // namespace pbox::nic
