// Tells when this host loses one of its addresses. A connection that uses it would only stand
// still: nothing answers, and nothing says why.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "nic/endpoint.h"

namespace pbox::worker {

// One thread at a time, which has the network namespace that the connections are in.
class AddressWatch {
 public:
  // Returns nothing if the kernel does not let this process watch.
  static std::optional<AddressWatch> open();
  AddressWatch(AddressWatch&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  AddressWatch& operator=(AddressWatch&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~AddressWatch();

  int fd() const { return fd_; }  // readable when an address may have gone
  // Returns the addresses, with port 0, that have gone since the last call and have not come back.
  std::vector<nic::Endpoint> take_lost();

 private:
  explicit AddressWatch(int fd) : fd_(fd) {}

  int fd_;
};

}  // namespace pbox::worker
