// Tells whether the files of keys, in a folder or a token, have changed since they were read. Any
// thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace pbox::tls {

// Identifies one version of a file. All zero if the file does not exist.
struct FileStamp {
  uint64_t device = 0, inode = 0, bytes = 0;
  int64_t changed_s = 0, changed_ns = 0;
  bool operator==(const FileStamp&) const = default;
};
using KeyStamp = std::array<FileStamp, 5>;

// Returns a value that differs once a file has been replaced, written, removed or added. Call it
// before reading the files, so that a change during the read is noticed the next time.
KeyStamp stamp_of(const std::string& path);

}  // namespace pbox::tls
