// A doubly linked list of some of a vector's entries, by their indexes. Appending and removing take
// constant time and no memory. An entry has `uint32_t next`, `uint32_t previous` and `bool
// is_open`, which is true while the entry is in the list. Not thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "base/check.h"

namespace pbox {

template <typename Entry>
class IndexList {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  // Returns the entry that was appended first; kNone if the list is empty.
  uint32_t head() const { return head_; }

  void append(std::vector<Entry>& entries, uint32_t index) {
    PBOX_DCHECK(index < entries.size() && !entries[index].is_open);
    PBOX_DCHECK((head_ == kNone) == (tail_ == kNone));
    entries[index].is_open = true;
    entries[index].previous = tail_;
    entries[index].next = kNone;
    (tail_ == kNone ? head_ : entries[tail_].next) = index;
    tail_ = index;
  }
  void remove(std::vector<Entry>& entries, Entry& entry) {
    PBOX_DCHECK(entry.is_open && head_ != kNone && tail_ != kNone);
    (entry.previous == kNone ? head_ : entries[entry.previous].next) = entry.next;
    (entry.next == kNone ? tail_ : entries[entry.next].previous) = entry.previous;
    entry.is_open = false;
  }

 private:
  uint32_t head_ = kNone;
  uint32_t tail_ = kNone;
};

}  // namespace pbox
