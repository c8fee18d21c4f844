#include "worker/collective/call_text.h"

namespace pbox::worker {

std::string to_text(const CollectiveCall& call) {
  std::string text = "operation " + std::to_string(call.number) + " (" +
                     wire::kVerbNames[static_cast<size_t>(call.verb)];
  if (call.verb != wire::Verb::kBarrier) {
    text += " of " + std::to_string(call.count) + " " + wire::to_string(call.dtype);
  }
  if (wire::reduces(call.verb)) {
    text += std::string(", ") + wire::kCombineNames[static_cast<size_t>(call.combine)];
  }
  if (call.verb == wire::Verb::kBroadcast) text += " from rank " + std::to_string(call.root);
  return text + ")";
}

}  // namespace pbox::worker
