// Reports that this host has lost one of its addresses. Without this, a connection that uses the
// address would hang without an error.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "nic/endpoint.h"

namespace pbox::worker {

// Used by one thread at a time, in the network namespace of the connections.
class AddressWatch {
 public:
  // Returns nullopt if the kernel does not let this process watch.
  static std::optional<AddressWatch> open();
  AddressWatch(AddressWatch&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  AddressWatch& operator=(AddressWatch&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~AddressWatch();

  int fd() const { return fd_; }  // readable when an address may have been lost
  // Returns the addresses, with port 0, that were lost since the last call and are not back.
  std::vector<nic::Endpoint> take_lost();

 private:
  explicit AddressWatch(int fd) : fd_(fd) {}

  int fd_;
};

}  // namespace pbox::worker
