// What every Store promises, as cases that each store's own test program runs.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>

#include "appliance/cluster/store.h"

namespace pbox::cluster {

constexpr std::chrono::seconds kPatience{30};  // for what takes milliseconds

// A loop, and calls into a store that wait for their answer.
class Desk {
 public:
  // True once `done`, false after kPatience.
  bool run_until(const std::function<bool()>& done);
  Result<Snapshot> get(Store& store, const std::string& prefix);
  Result<Outcome> commit(Store& store, const Transaction& transaction);
  bool await_session(Store& store);  // of a store that was started

  boost::asio::io_context context;
};

// Opens and starts a store of the same content, which may be empty or not.
using StoreFactory = std::function<std::unique_ptr<Store>(Desk&, Observer)>;

void check_transactions(Desk& desk, const StoreFactory& open);
void check_watches(Desk& desk, const StoreFactory& open);
void check_sessions(Desk& desk, const StoreFactory& open);
void check_claims(Desk& desk, const StoreFactory& open);

}  // namespace pbox::cluster
