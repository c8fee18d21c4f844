#include "nic/port.h"

namespace pbox::nic {

const char* to_string(QueueAffinity affinity) {
  switch (affinity) {
    case QueueAffinity::kUdpPort: return "udp-port";
    case QueueAffinity::kRssHash: return "rss-hash";
    case QueueAffinity::kSenderQueue: return "sender-queue";
    case QueueAffinity::kSourceTrial: return "source-trial";
    case QueueAffinity::kDispatch: return "dispatch";
  }
  return "unknown";
}

}  // namespace pbox::nic
