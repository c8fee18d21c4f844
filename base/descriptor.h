// Owns a file descriptor and closes it. Any thread.
#pragma once

#include <unistd.h>

#include <utility>

namespace pbox {

class Descriptor {
 public:
  Descriptor() = default;
  // Takes ownership of `fd`. A negative `fd`, as a failed system call returns it, means none.
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }

  int get() const { return fd_; }
  // Gives the descriptor to the caller.
  int release() { return std::exchange(fd_, -1); }
  bool ok() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

}  // namespace pbox
