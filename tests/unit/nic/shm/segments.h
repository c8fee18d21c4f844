// Segments with the smallest rings, for tests of both ends in one process.
#pragma once

#include <unistd.h>

#include <catch2/catch.hpp>
#include <utility>

#include "nic/shm/segment.h"

namespace pbox::nic {

inline constexpr uint64_t kSmallRing = kRingBytesMin;

inline OwnSegment small_segment() {
  auto made = OwnSegment::make(kSmallRing);
  REQUIRE(made.ok());
  return std::move(*made);
}

// The segment as another process has it mapped.
inline OtherSegment as_seen(const OwnSegment& segment) {
  auto mapped = OtherSegment::map(Descriptor(dup(segment.file().get())), kSmallRing);
  REQUIRE(mapped.ok());
  return std::move(*mapped);
}

}  // namespace pbox::nic
