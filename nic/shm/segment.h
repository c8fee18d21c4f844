// Memory of one end of a lane that the other end may read: a head and a ring (ring.h), in a file
// without a name (memfd_create). It is sealed, so that it keeps its size and no other process can
// write to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/descriptor.h"
#include "base/memory_file.h"
#include "base/result.h"
#include "nic/shm/ring.h"

namespace pbox::nic {

// This end's segment. Set-up thread.
class OwnSegment {
 public:
  // Pages get their memory when they are first touched, on the node of the thread that touches
  // them.
  static Result<OwnSegment> make(uint64_t ring_bytes);

  // Returns the file, for the other end. This end does not need it, because make() has mapped it.
  const Descriptor& file() const { return file_; }
  void close_file() { file_ = Descriptor(); }
  uint64_t ring_bytes() const { return ring_bytes_; }
  SegmentHead& head() const { return *reinterpret_cast<SegmentHead*>(mapping_.data()); }
  std::byte* ring() const;

 private:
  OwnSegment(Descriptor file, Mapping mapping, uint64_t ring_bytes)
      : file_(std::move(file)), mapping_(std::move(mapping)), ring_bytes_(ring_bytes) {}

  Descriptor file_;
  Mapping mapping_;
  uint64_t ring_bytes_ = 0;
};

// The other end's segment, mapped read-only. Set-up thread.
class OtherSegment {
 public:
  // Refuses a file that could shrink or is in hugepages, because reading it could then kill this
  // process (SIGBUS). Errors say what is wrong with it.
  static Result<OtherSegment> map(const Descriptor& file, uint64_t ring_bytes);

  uint64_t ring_bytes() const { return ring_bytes_; }
  const SegmentHead& head() const { return *reinterpret_cast<const SegmentHead*>(mapping_.data()); }
  const std::byte* ring() const;

 private:
  OtherSegment(Mapping mapping, uint64_t ring_bytes)
      : mapping_(std::move(mapping)), ring_bytes_(ring_bytes) {}

  Mapping mapping_;
  uint64_t ring_bytes_ = 0;
};

}  // namespace pbox::nic
