// Files without a name (memfd_create) whose memory other processes may map read-only. Set-up
// threads.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "base/descriptor.h"
#include "base/result.h"

namespace pbox {

// Owns a mapping of memory, and removes it when it is destroyed.
class Mapping {
 public:
  Mapping() = default;
  Mapping(std::byte* data, size_t bytes) : data_(data), bytes_(bytes) {}
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Mapping();

  std::byte* data() const { return data_; }
  size_t size() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

// Makes a file of this size, filled with zeros, which no other user may open. `flags` are flags of
// memfd_create(), for hugepages. Tools that list a process's mappings show `name`.
Result<Descriptor> make_memory_file(const char* name, size_t bytes, unsigned flags = 0);

// Seals a file that make_memory_file() made. To be called once its maker has mapped it, because
// nobody can map it for writing, or free its pages, afterwards. Its size is fixed too, unless
// `may_shrink`.
Status seal_memory_file(const Descriptor& file, bool may_shrink = false);

// Opens a file that make_memory_file() made once more, read-only. Pass this descriptor, not `file`,
// to another process if the file may shrink: `file` is open for writing, so that its holder can
// truncate it.
Result<Descriptor> reopen_to_read(const Descriptor& file);

// Maps a file that another process made, read-only. Fails if the file has fewer than `bytes`.
// `may_shrink`: the other process is trusted. Otherwise this also fails if the file could shrink or
// is in hugepages, because reading it could then kill this process (SIGBUS): a hugepage that was
// never touched is allocated at the first read, and none may be free. Errors begin with `what`,
// such as "the worker's memory".
Result<Mapping> map_memory_file(const Descriptor& file, size_t bytes, const std::string& what,
                                bool may_shrink = false);
// Makes the checks of map_memory_file(), and maps nothing.
Status check_memory_file(const Descriptor& file, size_t bytes, const std::string& what,
                         bool may_shrink = false);

}  // namespace pbox
