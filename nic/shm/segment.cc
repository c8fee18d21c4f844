#include "nic/shm/segment.h"

#include <sys/mman.h>

#include <cerrno>
#include <string>

namespace pbox::nic {
namespace {

// The largest page of any machine, because mappings begin at a page.
constexpr uint64_t kHeadBytes = 64 << 10;
static_assert(kHeadBytes >= sizeof(SegmentHead));

// Maps the head, the ring, and the ring once more behind itself.
Result<Mapping> map_twice(int fd, uint64_t ring_bytes, int protection) {
  const uint64_t bytes = kHeadBytes + 2 * ring_bytes;
  void* place = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (place == MAP_FAILED) return system_error("cannot reserve addresses for a segment", errno);
  Mapping mapping(static_cast<std::byte*>(place), bytes);
  std::byte* const second = mapping.data() + kHeadBytes + ring_bytes;
  if (mmap(mapping.data(), kHeadBytes + ring_bytes, protection, MAP_SHARED | MAP_FIXED, fd, 0) ==
          MAP_FAILED ||
      mmap(second, ring_bytes, protection, MAP_SHARED | MAP_FIXED, fd, kHeadBytes) == MAP_FAILED) {
    return system_error("cannot map a segment", errno);
  }
  // Without this, a child that fork() creates would keep the memory, which it never uses.
  madvise(mapping.data(), bytes, MADV_DONTFORK);
  return mapping;
}

}  // namespace

Result<OwnSegment> OwnSegment::make(uint64_t ring_bytes) {
  PBOX_CHECK(is_ring_size(ring_bytes));
  auto file = make_memory_file("pbox-lane", kHeadBytes + ring_bytes);
  if (!file) return file.error();
  auto mapping = map_twice(file->get(), ring_bytes, PROT_READ | PROT_WRITE);
  if (!mapping) return mapping.error();
  if (const Status sealed = seal_memory_file(*file); !sealed) return sealed.error();
  return OwnSegment(std::move(*file), std::move(*mapping), ring_bytes);
}

std::byte* OwnSegment::ring() const {
  return mapping_.data() + kHeadBytes;
}

Result<OtherSegment> OtherSegment::map(const Descriptor& file, uint64_t ring_bytes) {
  PBOX_CHECK(is_ring_size(ring_bytes));
  const Status fit =
      check_memory_file(file, kHeadBytes + ring_bytes, "the segment of the other end");
  if (!fit) return fit.error();
  auto mapping = map_twice(file.get(), ring_bytes, PROT_READ);
  if (!mapping) return mapping.error();
  return OtherSegment(std::move(*mapping), ring_bytes);
}

const std::byte* OtherSegment::ring() const {
  return mapping_.data() + kHeadBytes;
}

}  // namespace pbox::nic
