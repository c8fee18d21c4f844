#include "nic/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>

namespace pbox::nic {
namespace {

// A page, on every machine: mappings begin on one.
constexpr uint64_t kHeadBytes = 64 << 10;
static_assert(kHeadBytes >= sizeof(SegmentHead));

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;

// Maps head, ring, and the ring once more behind itself.
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
  // Without this, a child that fork() makes would keep the memory. It never uses it.
  madvise(mapping.data(), bytes, MADV_DONTFORK);
  return mapping;
}

Error unfit(const std::string& what) {
  return {ErrorCode::kInvalidArgument, "the segment of the other end " + what};
}

}  // namespace

Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

Result<OwnSegment> OwnSegment::make(uint64_t ring_bytes) {
  PBOX_CHECK(is_ring_size(ring_bytes));
  Descriptor file(memfd_create("pbox-lane", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.ok()) return system_error("cannot create a segment", errno);
  if (ftruncate(file.get(), static_cast<off_t>(kHeadBytes + ring_bytes)) != 0) {
    return system_error("cannot give a segment its size", errno);
  }
  auto mapping = map_twice(file.get(), ring_bytes, PROT_READ | PROT_WRITE);
  if (!mapping) return mapping.error();
  // From now on nobody can map it to write.
  if (fcntl(file.get(), F_ADD_SEALS, kSeals) != 0) {
    return system_error("cannot seal a segment", errno);
  }
  return OwnSegment(std::move(file), std::move(*mapping), ring_bytes);
}

std::byte* OwnSegment::ring() const {
  return mapping_.data() + kHeadBytes;
}

Result<OtherSegment> OtherSegment::map(const Descriptor& file, uint64_t ring_bytes) {
  PBOX_CHECK(is_ring_size(ring_bytes));
  const int seals = fcntl(file.get(), F_GET_SEALS);
  if (seals < 0) return unfit("is not a file of memfd_create()");
  if ((seals & F_SEAL_SHRINK) == 0) return unfit("may shrink; it must have the seal F_SEAL_SHRINK");
  struct stat status {};
  if (fstat(file.get(), &status) != 0) return system_error("cannot look at a segment", errno);
  if (static_cast<uint64_t>(status.st_size) < kHeadBytes + ring_bytes) {
    return unfit("has " + std::to_string(status.st_size) + " bytes, fewer than the " +
                 std::to_string(kHeadBytes + ring_bytes) + " of its ring");
  }
  auto mapping = map_twice(file.get(), ring_bytes, PROT_READ);
  if (!mapping) return mapping.error();
  return OtherSegment(std::move(*mapping), ring_bytes);
}

const std::byte* OtherSegment::ring() const {
  return mapping_.data() + kHeadBytes;
}

}  // namespace pbox::nic
