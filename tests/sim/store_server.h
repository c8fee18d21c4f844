// The cluster's store as its members see it: one ordered map of keys in which every change has a
// revision, and sessions whose end deletes their keys. It is never lost, but the boxes may lose
// their connections to it (sim_store.h).
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "appliance/cluster/store.h"

namespace pbox::sim {

class StoreServer {
 public:
  using Events = std::vector<cluster::Event>;
  using Listener = std::function<void(const Events&)>;

  cluster::Snapshot get(const std::string& prefix) const;
  cluster::Outcome commit(const cluster::Transaction& transaction, int64_t session);
  int64_t begin_session();
  // Deletes the session's keys.
  void end_session(int64_t session);
  bool has_session(int64_t session) const { return sessions_.contains(session); }

  // Calls the listener with each change of keys with this prefix, from this revision on. Changes
  // that have already happened are reported during this call. Returns a number for unwatch().
  uint64_t watch(const std::string& prefix, int64_t revision, Listener listener);
  void unwatch(uint64_t watch) { watches_.erase(watch); }

 private:
  struct Watch {
    std::string prefix;
    Listener listener;
  };

  void publish(Events events);
  static void tell(const Watch& watch, const Events& events);

  std::map<std::string, cluster::KeyValue> entries_;
  std::vector<Events> history_;
  std::set<int64_t> sessions_;
  std::map<uint64_t, Watch> watches_;
  int64_t revision_ = 1;
  int64_t next_session_ = 1;
  uint64_t next_watch_ = 1;
};

}  // namespace pbox::sim
