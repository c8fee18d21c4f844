// Whether the files of a folder of keys (credentials.h) are those that were read. Any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace pbox::tls {

// All zero for a file that is not there.
struct FileStamp {
  uint64_t device = 0, inode = 0, bytes = 0;
  int64_t changed_s = 0, changed_ns = 0;
  bool operator==(const FileStamp&) const = default;
};
using FolderStamp = std::array<FileStamp, 4>;

// Returns a value that differs once a file has been replaced, written, removed or added. Taken
// before the files are read, so that a change meanwhile is noticed the next time.
FolderStamp stamp_of(const std::string& folder);

}  // namespace pbox::tls
