#include "base/memory_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace pbox {

Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

Result<Descriptor> make_memory_file(const char* name, size_t bytes, unsigned flags) {
  Descriptor file(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | flags));
  if (!file.ok()) return system_error("cannot create memory to share", errno);
  if (ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) {
    return system_error("cannot create " + std::to_string(bytes) + " bytes of memory to share",
                        errno);
  }
  // Otherwise, any user to whom the file is passed could open it again for writing.
  if (fchmod(file.get(), S_IRUSR) != 0)
    return system_error("cannot protect memory to share", errno);
  return file;
}

Result<Descriptor> reopen_to_read(const Descriptor& file) {
  const std::string path = "/proc/self/fd/" + std::to_string(file.get());
  Descriptor reader(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!reader.ok()) return system_error("cannot open " + path + " to share its memory", errno);
  return reader;
}

Status seal_memory_file(const Descriptor& file, bool may_shrink) {
  const int size = may_shrink ? 0 : F_SEAL_SHRINK | F_SEAL_GROW;
  if (fcntl(file.get(), F_ADD_SEALS, size | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0) {
    return system_error("cannot seal memory to share", errno);
  }
  return ok_status();
}

Status check_memory_file(const Descriptor& file, size_t bytes, const std::string& what,
                         bool may_shrink) {
  const auto unfit = [&what](const std::string& why) {
    return Error{ErrorCode::kInvalidArgument, what + " " + why};
  };
  const int seals = fcntl(file.get(), F_GET_SEALS);
  if (seals < 0) return unfit("is not a file of memfd_create()");
  if (!may_shrink && (seals & F_SEAL_SHRINK) == 0) {
    return unfit("may shrink; it must have the seal F_SEAL_SHRINK");
  }
  struct statfs system {};
  if (fstatfs(file.get(), &system) != 0) return system_error("cannot look at " + what, errno);
  if (!may_shrink && system.f_type == HUGETLBFS_MAGIC) {
    return unfit("is in hugepages; it must be in ordinary pages");
  }
  struct stat status {};
  if (fstat(file.get(), &status) != 0) return system_error("cannot look at " + what, errno);
  if (static_cast<uint64_t>(status.st_size) >= bytes) return ok_status();
  return unfit("has " + std::to_string(status.st_size) + " bytes, fewer than the " +
               std::to_string(bytes) + " that it must have");
}

Result<Mapping> map_memory_file(const Descriptor& file, size_t bytes, const std::string& what,
                                bool may_shrink) {
  if (const Status fit = check_memory_file(file, bytes, what, may_shrink); !fit) return fit.error();
  void* const place = mmap(nullptr, bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, file.get(), 0);
  if (place == MAP_FAILED) return system_error("cannot map " + what, errno);
  Mapping mapping(static_cast<std::byte*>(place), bytes);
  // Without this, a child made by fork() would keep the mapping, which it never uses.
  madvise(mapping.data(), bytes, MADV_DONTFORK);
  return mapping;
}

}  // namespace pbox
