// A copy of all keys with a prefix, kept up to date. It reads once, then watches, and reads again
// if the store has compacted the changes in between. Main thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "appliance/cluster/environment.h"
#include "appliance/cluster/store.h"

namespace pbox::cluster {

class Mirror {
 public:
  // `context` and `store` outlive the mirror. `on_change` is called after each load and change.
  Mirror(boost::asio::io_context& context, Store& store, std::string prefix,
         std::function<void()> on_change);
  ~Mirror();
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;

  bool loaded() const { return loaded_; }
  // Consistent: all entries are as of one revision.
  const std::map<std::string, KeyValue>& entries() const { return entries_; }
  const KeyValue* find(const std::string& key) const;

 private:
  void read();
  void follow(const Result<Snapshot>& snapshot);
  void take(const std::vector<Event>& events);

  Store& store_;
  std::string prefix_;
  std::function<void()> on_change_;
  Timer retry_;
  std::map<std::string, KeyValue> entries_;
  bool loaded_ = false;
  std::unique_ptr<Watch> watch_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace pbox::cluster
