#include "appliance/cluster/local_store.h"

#include <boost/asio/post.hpp>
#include <utility>

#include "appliance/cluster/etcd.pb.h"
#include "appliance/storage/replace_file.h"
#include "base/check.h"

namespace pbox::cluster {
namespace {

constexpr char kLocalName[] = "cluster";
constexpr int64_t kSession = 1;  // there is never more than one session

bool begins_with(const std::string& key, const std::string& prefix) {
  return key.compare(0, prefix.size(), prefix) == 0;
}

// The file is "pbox-cluster 1c291ca3\n", with a checksum over everything that follows, and then an
// etcd RangeResponse.
std::string header_of(const std::string& body) {
  return "pbox-cluster " + storage::checksum(body) + "\n";
}

Error damaged() {
  return {ErrorCode::kSystem,
          "the file 'cluster' in the folder of [cluster] state_directory is damaged. Stop every "
          "worker that still waits for this box, then delete the file and start again"};
}

}  // namespace

// Delivers the changes of the history one by one, each in its own call from the io_context.
class LocalStore::Subscription : public Watch {
 public:
  Subscription(LocalStore& store, std::string prefix, int64_t revision, WatchHandler handler)
      : store_(store), prefix_(std::move(prefix)), next_(revision), handler_(std::move(handler)) {
    PBOX_CHECK(revision >= 1);
    store_.subscriptions_.insert(this);
    wake();
  }
  ~Subscription() override {
    *alive_ = false;
    store_.subscriptions_.erase(this);
  }

  void wake() {
    store_.post([this, alive = alive_] {
      if (*alive) deliver();
    });
  }

 private:
  void deliver() {
    if (over_) return;
    if (next_ <= store_.compacted_) {
      over_ = true;
      const auto on_compacted = handler_.on_compacted;  // may destroy this watch
      on_compacted();
      return;
    }
    for (const Change& change : store_.history_) {
      if (change.revision < next_) continue;
      PBOX_DCHECK(change.revision <= store_.state_.revision);
      next_ = change.revision + 1;
      wake();
      std::vector<Event> events;
      for (const Event& event : change.events) {
        if (begins_with(event.entry.key, prefix_)) events.push_back(event);
      }
      const auto on_events = handler_.on_events;
      if (!events.empty()) on_events(events);
      return;
    }
  }

  LocalStore& store_;
  std::string prefix_;
  int64_t next_;
  WatchHandler handler_;
  bool over_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

Result<std::unique_ptr<LocalStore>> LocalStore::open(boost::asio::io_context& context,
                                                     storage::Disk& disk) {
  const auto text = disk.read(kLocalName);
  if (!text) return text.error();
  std::unique_ptr<LocalStore> store(new LocalStore(context, disk));
  State& state = store->state_;
  Transaction left_behind;
  if (text->has_value()) {
    const size_t header_bytes = header_of("").size();
    etcdserverpb::RangeResponse stored;
    if ((*text)->size() < header_bytes) return damaged();
    const std::string body = (*text)->substr(header_bytes);
    if (header_of(body) != (*text)->substr(0, header_bytes)) return damaged();
    if (!stored.ParseFromString(body)) return damaged();
    state.revision = stored.header().revision();
    for (const auto& entry : stored.kvs()) {
      state.entries[entry.key()] = {entry.key(), entry.value(), entry.create_revision(),
                                    entry.mod_revision(), entry.lease()};
      if (entry.lease() != 0) left_behind.deletes.push_back(entry.key());
    }
  }
  const auto cleared = store->apply(left_behind);
  if (!cleared) return cleared.error();
  store->history_.clear();
  store->compacted_ = state.revision;
  return store;
}

LocalStore::~LocalStore() {
  *alive_ = false;
}

void LocalStore::post(std::function<void()> function) {
  boost::asio::post(context_, [alive = alive_, function = std::move(function)] {
    if (*alive) function();
  });
}

void LocalStore::start(Observer observer) {
  PBOX_CHECK(session_ == 0);
  observer_ = std::move(observer);
  session_ = kSession;
  health_.up = true;
  post([this, health = health_] {
    observer_.on_health(health);
    observer_.on_session(session_);
  });
}

void LocalStore::get(const std::string& prefix, std::function<void(Result<Snapshot>)> done) {
  Snapshot snapshot{{}, state_.revision};
  for (auto entry = state_.entries.lower_bound(prefix);
       entry != state_.entries.end() && begins_with(entry->first, prefix); ++entry) {
    snapshot.entries.push_back(entry->second);
  }
  post([done = std::move(done), snapshot = std::move(snapshot)] { done(snapshot); });
}

void LocalStore::commit(Transaction transaction, std::function<void(Result<Outcome>)> done) {
  const Status valid = check(transaction);
  const auto outcome = valid ? apply(transaction) : Result<Outcome>(valid.error());
  const bool was_up = health_.up;
  if (!outcome) ++health_.errors[static_cast<size_t>(Operation::kCommit)];
  if (valid) {
    health_.up = outcome.ok();
    health_.error = outcome ? "" : outcome.error().message;
  }
  const bool changed = health_.up != was_up;
  post([this, done = std::move(done), outcome, changed, health = health_] {
    if (changed) observer_.on_health(health);
    done(outcome);
  });
  for (Subscription* subscription : subscriptions_) subscription->wake();
}

Result<Outcome> LocalStore::apply(const Transaction& transaction) {
  for (const Condition& condition : transaction.conditions) {
    const auto found = state_.entries.find(condition.key);
    const int64_t revision = found == state_.entries.end() ? 0 : found->second.mod_revision;
    if (revision != condition.mod_revision) return Outcome{false, state_.revision};
  }
  State next = state_;
  Change change{++next.revision, {}};
  for (const Put& put : transaction.puts) {
    if (put.ephemeral && session_ == 0) {
      return Error{ErrorCode::kUnavailable,
                   "the store has not been started, so there is no session"};
    }
    KeyValue& entry = next.entries[put.key];
    if (entry.create_revision == 0) entry.create_revision = next.revision;
    entry = {put.key, put.value, entry.create_revision, next.revision,
             put.ephemeral ? session_ : 0};
    change.events.push_back({false, entry});
  }
  for (const std::string& key : transaction.deletes) {
    if (next.entries.erase(key) == 0) continue;
    change.events.push_back(
        {.deleted = true, .entry = {.key = key, .mod_revision = next.revision}});
  }
  if (change.events.empty()) return Outcome{true, state_.revision};
  if (const Status status = write(next); !status) return status.error();
  PBOX_CHECK(next.revision == state_.revision + 1 && next.revision == change.revision);
  state_ = std::move(next);
  history_.push_back(std::move(change));
  if (history_.size() > kHistoryMax) {
    compacted_ = history_.front().revision;
    history_.pop_front();
  }
  return Outcome{true, state_.revision};
}

Status LocalStore::write(const State& state) {
  etcdserverpb::RangeResponse stored;
  stored.mutable_header()->set_revision(state.revision);
  for (const auto& [key, entry] : state.entries) {
    auto& kv = *stored.add_kvs();
    kv.set_key(key);
    kv.set_value(entry.value);
    kv.set_create_revision(entry.create_revision);
    kv.set_mod_revision(entry.mod_revision);
    kv.set_lease(entry.session);
  }
  const std::string body = stored.SerializeAsString();
  return storage::replace_file(disk_, kLocalName, header_of(body) + body);
}

std::unique_ptr<Watch> LocalStore::watch(const std::string& prefix, int64_t revision,
                                         WatchHandler handler) {
  return std::make_unique<Subscription>(*this, prefix, revision, std::move(handler));
}

}  // namespace pbox::cluster
