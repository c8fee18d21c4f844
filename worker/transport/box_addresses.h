// The addresses of boxes, by HOST:PORT. Resolving a name may take minutes, if its name server does
// not answer. So each name is resolved on a short-lived thread. Neither a caller nor the destructor
// waits for it.
#pragma once

#include <sys/socket.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace pbox::worker {

class BoxAddresses {
 public:
  struct Address {
    sockaddr_storage address;
    socklen_t length;
  };
  using Addresses = std::vector<Address>;
  // Returns at least one address, or an error. May block, and runs on any thread.
  using Resolve = std::function<Result<Addresses>(const std::string& box)>;

  explicit BoxAddresses(Resolve resolve = resolve_by_system);

  // Returns the addresses of `box`, "HOST:PORT" or "[IPV6]:PORT". Resolved names are kept. Returns
  // nullopt while the name is being resolved, and an error once that has failed; the next call
  // begins anew. Never blocks. Any thread may call it.
  std::optional<Result<Addresses>> find(const std::string& box);
  // Begins to resolve the name again, because no known address has answered. The known ones are
  // kept until there are newer ones. Never blocks. Any thread may call it.
  void refresh(const std::string& box);
  // Readable when a resolution has ended since the last find().
  int fd() const;

  static Result<Addresses> resolve_by_system(const std::string& box);

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with the threads that resolve
};

}  // namespace pbox::worker
