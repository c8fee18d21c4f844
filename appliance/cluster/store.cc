#include "appliance/cluster/store.h"

#include <set>

namespace pbox::cluster {

Status check(const Transaction& transaction) {
  std::set<std::string> changed;
  const auto fault = [&changed](const std::string& key) -> Status {
    if (key.empty()) {
      return Error{ErrorCode::kInvalidArgument, "a transaction changes the key ''; name one"};
    }
    if (!changed.insert(key).second) {
      return Error{ErrorCode::kInvalidArgument,
                   "a transaction changes the key '" + key + "' twice; keep one change of it"};
    }
    return ok_status();
  };
  for (const Put& put : transaction.puts) {
    if (const Status status = fault(put.key); !status) return status;
  }
  for (const std::string& key : transaction.deletes) {
    if (const Status status = fault(key); !status) return status;
  }
  return ok_status();
}

}  // namespace pbox::cluster
