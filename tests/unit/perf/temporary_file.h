// A file with a given text, which is removed at the end of a test.
#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <string>

namespace pbox::perf {

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text)
      : path_(std::filesystem::temp_directory_path() / "pbox-test-XXXXXX.json") {
    constexpr int kSuffixBytes = 5;
    const int fd = mkstemps(path_.data(), kSuffixBytes);
    REQUIRE(fd >= 0);
    close(fd);
    std::ofstream(path_) << text;
  }
  ~TemporaryFile() { unlink(path_.c_str()); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace pbox::perf
