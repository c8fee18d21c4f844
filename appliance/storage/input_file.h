// A file that is read from its beginning to its end. Only one thread may use it at a time. Calls
// block for as long as the disk takes.
#pragma once

#include <string>

#include "base/descriptor.h"
#include "base/result.h"

namespace pbox::storage {

class InputFile {
 public:
  static Result<InputFile> open(const std::string& path);

  // Reads exactly `bytes` bytes. Returns false if the file ends earlier.
  Result<bool> read(void* data, size_t bytes);

 private:
  InputFile(std::string path, Descriptor file) : path_(std::move(path)), file_(std::move(file)) {}

  std::string path_;  // for error messages
  Descriptor file_;
};

}  // namespace pbox::storage
