// Creating, connecting and failing queue pairs.
#pragma once

#include "nic/rdma/device.h"
#include "nic/wire/queue_pair.h"

namespace pbox::nic {

struct QueuePairOptions {
  ibv_pd* domain = nullptr;
  ibv_cq* completion_queue = nullptr;  // for sends and receives
  ibv_srq* receive_queue = nullptr;    // nullptr: the queue pair gets its own receive queue
  uint32_t receive_depth = 0;          // work requests in its own receive queue
  uint32_t send_depth = 0;             // work requests in the send queue
  uint32_t send_pieces = 0;            // scatter/gather elements per send
  uint32_t inline_bytes = 0;           // largest packet that is sent inline
};

struct MadeQueuePair {
  QueuePair queue_pair;
  wire::QueuePairAddress own;  // this end's address, for the peer
};

// Creates a reliable connected queue pair in state INIT. The peer cannot read any memory through
// it. It can write memory only if the queue pair has its own receive queue, and then only through a
// memory window that is bound to the queue pair. The number of the first packet is random, so that
// packets of an earlier connection do not match. Control thread.
Result<MadeQueuePair> make_queue_pair(const RdmaDevice& device, const QueuePairOptions& options);

// Moves the queue pair to the state in which it receives and sends (RTS). The error names both
// ends. Control thread.
Status connect_queue_pair(const RdmaDevice& device, ibv_qp& queue_pair,
                          const wire::QueuePairAddress& own, const wire::QueuePairAddress& peer);

// Moves the queue pair to the error state, for good; everything in flight fails. Control thread.
void fail_queue_pair(ibv_qp& queue_pair);

}  // namespace pbox::nic
