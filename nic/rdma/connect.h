// From a queue pair that was made to one that is connected: its states, and what they are given.
#pragma once

#include "nic/rdma/device.h"
#include "nic/wire/queue_pair.h"

namespace pbox::nic {

struct QueuePairOptions {
  ibv_pd* domain = nullptr;
  ibv_cq* completion_queue = nullptr;  // of sends and receives
  ibv_srq* receive_queue = nullptr;    // none: a queue of its own, of receive_depth
  uint32_t receive_depth = 0;
  uint32_t send_depth = 0;
  uint32_t send_pieces = 0;
  uint32_t inline_bytes = 0;
};

struct MadeQueuePair {
  QueuePair queue_pair;
  wire::QueuePairAddress own;
};

// Reliable connected. Nobody can read memory by it, nor write to any, but with a receive queue of
// its own what a window allows that is bound to it. In state INIT. The number of
// its first packet is drawn: packets of an earlier connection do not fit. Control thread.
Result<MadeQueuePair> make_queue_pair(const RdmaDevice& device, const QueuePairOptions& options);

// To the state in which it receives and sends. Control thread.
Status connect_queue_pair(const RdmaDevice& device, ibv_qp& queue_pair,
                          const wire::QueuePairAddress& own, const wire::QueuePairAddress& peer);

// To the state in which it does neither, for good; what is under way fails. Control thread.
void fail_queue_pair(ibv_qp& queue_pair);

}  // namespace pbox::nic
