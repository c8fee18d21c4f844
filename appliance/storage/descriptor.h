// Owns a file descriptor and closes it. Any thread.
#pragma once

#include <unistd.h>

#include <utility>

namespace pbox::storage {

class Descriptor {
 public:
  // `fd` as a system call returned it; negative: none.
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;

  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }

 private:
  int fd_;
};

}  // namespace pbox::storage
