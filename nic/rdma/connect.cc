#include "nic/rdma/connect.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <random>

namespace pbox::nic {
namespace {

// The acknowledgement timeout is 4.096 us * 2^16, a quarter of a second. After seven of them the
// connection is broken. The control connection detects a dead peer sooner and decides what happens.
// The 6 retries are not 7, because Soft-RoCE takes 7 as "unlimited".
constexpr uint8_t kAckTimeout = 16;
constexpr uint8_t kRetries = 6;
constexpr uint8_t kRnrRetries = 7;      // while the receiver has no buffer; 7 means unlimited
constexpr uint8_t kReceiverTimer = 12;  // the sender tries again after 0.64 ms
constexpr uint8_t kHopLimit = 64;

ibv_mtu mtu_of(uint32_t bytes) {
  return static_cast<ibv_mtu>(std::countr_zero(bytes) - 7);  // IBV_MTU_256 is 1
}

Status modify(const RdmaDevice& device, ibv_qp& queue_pair, ibv_qp_attr attributes, int mask,
              const char* state) {
  const int error = ibv_modify_qp(&queue_pair, &attributes, mask);
  if (error == 0) return ok_status();
  return system_error("RDMA device " + device.name() + ": cannot make a queue pair " + state,
                      error);
}

}  // namespace

Result<MadeQueuePair> make_queue_pair(const RdmaDevice& device, const QueuePairOptions& options) {
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = options.completion_queue;
  wanted.srq = options.receive_queue;
  wanted.qp_type = IBV_QPT_RC;
  wanted.cap.max_recv_wr = options.receive_depth;
  wanted.cap.max_recv_sge = options.receive_queue == nullptr ? 1 : 0;
  wanted.cap.max_send_wr = options.send_depth;
  wanted.cap.max_send_sge = options.send_pieces;
  wanted.cap.max_inline_data = options.inline_bytes;
  MadeQueuePair made;
  made.queue_pair = QueuePair(ibv_create_qp(options.domain, &wanted));
  if (!made.queue_pair) {
    return system_error("RDMA device " + device.name() + ": cannot create a queue pair", errno);
  }
  made.own.gid = device.gid().entry.gid;
  made.own.number = made.queue_pair->qp_num;
  made.own.packet_sequence = std::random_device{}() & 0xff'ffffu;
  made.own.lid = device.lid();
  made.own.mtu_bytes = device.mtu_bytes();
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = device.port();
  attributes.qp_access_flags = options.receive_queue == nullptr ? IBV_ACCESS_REMOTE_WRITE : 0;
  const Status begun = modify(device, *made.queue_pair.get(), attributes,
                              IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
                              "ready to connect");
  if (!begun) return begun.error();
  return made;
}

Status connect_queue_pair(const RdmaDevice& device, ibv_qp& queue_pair,
                          const wire::QueuePairAddress& own, const wire::QueuePairAddress& peer) {
  ibv_qp_attr receive{};
  receive.qp_state = IBV_QPS_RTR;
  receive.path_mtu = mtu_of(std::min(own.mtu_bytes, peer.mtu_bytes));
  receive.dest_qp_num = peer.number;
  receive.rq_psn = peer.packet_sequence;
  receive.min_rnr_timer = kReceiverTimer;
  receive.ah_attr.dlid = peer.lid;
  receive.ah_attr.port_num = device.port();
  receive.ah_attr.is_global = 1;
  std::memcpy(receive.ah_attr.grh.dgid.raw, peer.gid.data(), peer.gid.size());
  receive.ah_attr.grh.sgid_index = static_cast<uint8_t>(device.gid().entry.index);
  receive.ah_attr.grh.hop_limit = kHopLimit;
  Status done = modify(device, queue_pair, receive,
                       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                           IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
                       "ready to receive");
  if (!done) {
    return Error{done.error().code, done.error().message + "; check the route from " +
                                        to_string(own.gid) + " to " + to_string(peer.gid)};
  }
  ibv_qp_attr send{};
  send.qp_state = IBV_QPS_RTS;
  send.sq_psn = own.packet_sequence;
  send.timeout = kAckTimeout;
  send.retry_cnt = kRetries;
  send.rnr_retry = kRnrRetries;
  return modify(device, queue_pair, send,
                IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                    IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC,
                "ready to send");
}

void fail_queue_pair(ibv_qp& queue_pair) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  // A removed device refuses this, but then nothing is in flight either.
  ibv_modify_qp(&queue_pair, &attributes, IBV_QP_STATE);
}

}  // namespace pbox::nic
