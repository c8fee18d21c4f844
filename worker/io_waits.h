// Lets a worker's I/O thread sleep until one of its own descriptors, a control connection or a lane
// is ready. If packets arrive one by one, lets them gather (nic/coalescing.h). Notes which lanes
// have packets, so that the others need no system call. Used on that thread only.
#pragma once

#include <poll.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "nic/coalescing.h"
#include "worker/part_driver.h"

namespace pbox::worker {

class IoWaits {
 public:
  // Notes that `packets` packets, at least one, were received.
  void received(size_t packets, uint64_t now_ns) { coalescing_.received(packets, now_ns); }

  // Waits until one of `own` is readable (-1 is ignored), a driver has something to do, or limit_ns
  // is over. While packets should gather, it does not wake for them and waits only for a pause,
  // unless lanes must be polled. Returns whether the control side has something to do: a descriptor
  // other than a lane's is ready, or the time is over.
  bool wait(std::span<const int> own, const std::vector<std::unique_ptr<PartDriver>>& drivers,
            uint64_t limit_ns, bool must_poll);
  // Returns whether the last wait() found own[index] ready.
  bool is_ready(size_t index) const { return waits_[index].revents != 0; }

 private:
  nic::Coalescing coalescing_;
  std::vector<pollfd> waits_;  // descriptors of the last wait()
};

}  // namespace pbox::worker
