// A file that is made whole or not at all: written under another name, then renamed. Any thread.
#pragma once

#include <string>

#include "base/result.h"

namespace pbox::snapshot {

class File {
 public:
  // For reading.
  static Result<File> open(const std::string& path);
  // For writing; `path` is what it was until commit().
  static Result<File> replace(const std::string& path);
  File(File&& other) noexcept;
  File& operator=(File&&) = delete;
  ~File();  // what was written and not committed is gone

  Status write(const void* data, size_t bytes);
  // False: the file ends before.
  Result<bool> read(void* data, size_t bytes);
  // Durable under its name when this returns ok.
  Status commit();

 private:
  File(std::string path, int fd, bool is_new) : path_(std::move(path)), fd_(fd), is_new_(is_new) {}
  std::string written_as() const { return path_ + ".new"; }
  Error failed(const char* what) const;

  std::string path_;
  int fd_ = -1;
  bool is_new_ = false;
};

// Its names survive a crash.
Status sync_folder(const std::string& path);

}  // namespace pbox::snapshot
