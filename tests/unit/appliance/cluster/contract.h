// The promises of every Store, as test cases that each store's own test program runs.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>

#include "appliance/cluster/store.h"

namespace pbox::cluster {

constexpr std::chrono::seconds kPatience{30};  // generous: the operations take milliseconds

// An io_context, and calls into a store that wait for their answer.
class Desk {
 public:
  // Runs the loop. Returns true once `done` is true, false after kPatience.
  bool run_until(const std::function<bool()>& done);
  Result<Snapshot> get(Store& store, const std::string& prefix);
  Result<Outcome> commit(Store& store, const Transaction& transaction);
  bool await_session(Store& store);  // `store` has been started

  boost::asio::io_context context;
};

// Opens and starts a store with the same contents each time, which may be empty.
using StoreFactory = std::function<std::unique_ptr<Store>(Desk&, Observer)>;

void check_transactions(Desk& desk, const StoreFactory& open);
void check_watches(Desk& desk, const StoreFactory& open);
void check_sessions(Desk& desk, const StoreFactory& open);
void check_claims(Desk& desk, const StoreFactory& open);

}  // namespace pbox::cluster
