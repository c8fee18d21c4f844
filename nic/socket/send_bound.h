// Bounds what a socket's kernel buffer may hold, so that an urgent packet finds little ahead of it.
// The bound is what the cable takes in kSlackNs at its recent rate, and two segmented messages. The
// rate is measured only while the buffer is full, because otherwise this side is slower than the
// cable. So a cable that is never full costs nothing.
//
// A value without I/O. The thread that polls the port uses it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "base/check.h"
#include "base/clock.h"
#include "base/limits.h"

namespace pbox::nic {

class SendBound {
 public:
  // Time for which the bound lasts at the cable's rate, besides kLeastBytes. The kernel reports
  // room only when the buffer is half empty, so this thread may notice that late by half of this
  // time.
  static constexpr uint64_t kSlackNs = 2 * kNanosPerMilli;
  static constexpr uint64_t kLeastBytes = 2 * uint64_t{limits::kUdpPayloadMax};
  // The bound before anything is measured.
  static constexpr uint64_t kFirstBytes = 2 * kLeastBytes;

  // `most_bytes`: the largest value that the bound may take.
  explicit SendBound(uint64_t most_bytes)
      : most_bytes_(std::max(most_bytes, kLeastBytes)),
        bytes_(std::min(kFirstBytes, most_bytes_)) {}

  uint64_t bytes() const { return bytes_; }

  // Records that the kernel has taken a message.
  void add(uint64_t message_bytes) {
    PBOX_DCHECK(message_bytes <= limits::kUdpPayloadMax);
    taken_bytes_ += message_bytes;
  }
  // Records that the kernel takes no more. Returns the new bound if it has changed enough to tell
  // the kernel.
  std::optional<uint64_t> on_full(uint64_t now_ns) {
    PBOX_DCHECK(now_ns >= mark_ns_);
    const uint64_t elapsed_ns = now_ns - mark_ns_;
    if (mark_ns_ != 0 && elapsed_ns < kShortestNs) return std::nullopt;
    if (mark_ns_ != 0) {
      const uint64_t rate = (taken_bytes_ - marked_bytes_) * 1000 / (elapsed_ns / 1000);
      // Older measurements count less and less, because cables become slower too. A period with
      // nothing to send gives too low a rate, but the next measurement corrects it.
      const uint64_t age_ns = std::min(elapsed_ns, kMemoryNs);
      bytes_per_ms_ =
          std::max(rate, bytes_per_ms_ * ((kMemoryNs - age_ns) / 1000) / (kMemoryNs / 1000));
    }
    mark_ns_ = now_ns;
    marked_bytes_ = taken_bytes_;
    if (bytes_per_ms_ == 0) return std::nullopt;
    const uint64_t wanted =
        std::min(most_bytes_, kLeastBytes + bytes_per_ms_ * kSlackNs / kNanosPerMilli);
    if (wanted < bytes_ + bytes_ / 4 && wanted > bytes_ - bytes_ / 4) return std::nullopt;
    PBOX_DCHECK(wanted >= kLeastBytes && wanted <= most_bytes_);
    return bytes_ = wanted;
  }

 private:
  static constexpr uint64_t kShortestNs = kNanosPerMilli;
  static constexpr uint64_t kMemoryNs = 16 * kNanosPerMilli;

  uint64_t most_bytes_;
  uint64_t bytes_;
  uint64_t taken_bytes_ = 0;
  uint64_t mark_ns_ = 0;  // time of the last measurement; 0: none
  uint64_t marked_bytes_ = 0;
  uint64_t bytes_per_ms_ = 0;  // 0: unknown
};

}  // namespace pbox::nic
