// Files without a name (memfd_create) whose memory other processes may map to read, but not to
// write. Set-up threads.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "base/descriptor.h"
#include "base/result.h"

namespace pbox {

// A mapping that is removed with its owner.
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

// Makes a file of this size, filled with zeros. `flags`: those of memfd_create() for hugepages.
// `name` is what tools show that list a process's mappings.
Result<Descriptor> make_memory_file(const char* name, size_t bytes, unsigned flags = 0);

// Seals a file that make_memory_file() made, once its maker has mapped it: nobody can map it to
// write any more, nor give its pages back. Unless `may_shrink`, its size stays, too.
Status seal_memory_file(const Descriptor& file, bool may_shrink = false);

// Maps a file that another process made, to read only. Fails if it has fewer than `bytes`. Unless
// `may_shrink`, it also fails if the file could shrink, because reading would then kill this
// process (SIGBUS). Errors begin with `what`, such as "the worker's memory".
Result<Mapping> map_memory_file(const Descriptor& file, size_t bytes, const std::string& what,
                                bool may_shrink = false);
// The check alone.
Status check_memory_file(const Descriptor& file, size_t bytes, const std::string& what,
                         bool may_shrink = false);

}  // namespace pbox
