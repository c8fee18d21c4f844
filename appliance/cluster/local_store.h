// The store of a single box: one checksummed file, replaced durably before a commit is answered. A
// session lasts as long as the store object; the keys it leaves behind are deleted when the file is
// next opened. Main thread, which waits for the disk.
#pragma once

#include <boost/asio/io_context.hpp>
#include <deque>
#include <map>
#include <set>

#include "appliance/cluster/store.h"
#include "appliance/storage/disk.h"

namespace pbox::cluster {

class LocalStore : public Store {
 public:
  // `context` and `disk` outlive the store. Fails if the file is damaged, because it is then
  // unknown what was committed.
  static Result<std::unique_ptr<LocalStore>> open(boost::asio::io_context& context,
                                                  storage::Disk& disk);
  ~LocalStore() override;

  void start(Observer observer) override;
  void get(const std::string& prefix, std::function<void(Result<Snapshot>)> done) override;
  void commit(Transaction transaction, std::function<void(Result<Outcome>)> done) override;
  std::unique_ptr<Watch> watch(const std::string& prefix, int64_t revision,
                               WatchHandler handler) override;
  int64_t session() const override { return session_; }
  const Health& health() const override { return health_; }

  // Number of changes that watches can still ask for; older ones are compacted.
  static constexpr size_t kHistoryMax = 1024;

 private:
  class Subscription;
  struct Change {
    int64_t revision = 0;
    std::vector<Event> events;
  };
  struct State {
    int64_t revision = 1;
    std::map<std::string, KeyValue> entries;
  };

  LocalStore(boost::asio::io_context& context, storage::Disk& disk)
      : context_(context), disk_(disk) {}

  Result<Outcome> apply(const Transaction& transaction);
  Status write(const State& state);
  // Runs `function` later on the io_context, unless the store has been destroyed by then.
  void post(std::function<void()> function);

  boost::asio::io_context& context_;
  storage::Disk& disk_;
  State state_;
  std::deque<Change> history_;
  int64_t compacted_ = 0;  // changes up to this revision are no longer in the history
  std::set<Subscription*> subscriptions_;
  Observer observer_;
  Health health_;
  int64_t session_ = 0;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace pbox::cluster
