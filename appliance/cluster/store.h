// The store that the boxes of a cluster share: a small ordered map of strings in which every change
// has a revision. One interface, two stores: LocalStore, a file of a single box, and EtcdStore.
// Both keep the same promises; the contract tests in tests/unit/appliance/cluster run against both.
//
// Main thread only. Nothing here blocks on a network. Every answer comes through a callback that
// the daemon's io_context calls later, never inside the call that asked and never after the store
// has been destroyed.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"

namespace pbox::cluster {

// The pause before a request that the store has not answered is sent again.
constexpr std::chrono::milliseconds kStoreRetry{500};

// Revisions count the changes of the whole store. They ascend and start at 1 or above.
struct KeyValue {
  std::string key = {};
  std::string value = {};
  int64_t create_revision = 0;  // change that created the key (again, if it had been deleted)
  int64_t mod_revision = 0;     // the key's last change
  int64_t session = 0;          // session whose end deletes the key; 0: the key is permanent
};

struct Snapshot {
  std::vector<KeyValue> entries;  // ascending by key
  int64_t revision = 0;           // a watch from revision + 1 on misses no change
};

struct Condition {
  std::string key;
  int64_t mod_revision = 0;  // 0: the key must not exist
};

struct Put {
  std::string key;
  std::string value;
  bool ephemeral = false;  // deleted when this store's session ends
};

// Applied as a whole if every condition holds, else not at all. No key may be changed twice.
struct Transaction {
  std::vector<Condition> conditions;
  std::vector<Put> puts;
  std::vector<std::string> deletes;  // keys to delete; a missing key is ignored
};

struct Outcome {
  bool committed = false;  // false: a condition did not hold and nothing was changed
  int64_t revision = 0;    // revision of the change, if committed
};

struct Event {
  bool deleted = false;
  KeyValue entry;  // if deleted: only key and mod_revision are set
};

struct WatchHandler {
  // Events come in order of revision, each change once. The events of one transaction arrive
  // together.
  std::function<void(const std::vector<Event>&)> on_events;
  // The store has compacted changes that this watch asked for. Call get() and watch from there;
  // this watch delivers nothing more.
  std::function<void()> on_compacted;
};

// Destroying it ends the watch. The store must outlive it.
class Watch {
 public:
  virtual ~Watch() = default;
};

enum class Operation { kGet, kCommit, kWatch, kLease, kAuthenticate, kStatus };
inline constexpr std::array<const char*, 6> kOperationNames = {"get",   "commit",       "watch",
                                                               "lease", "authenticate", "status"};

struct Health {
  bool up = false;    // the store answers and accepts changes
  std::string error;  // why the store is down; empty while up
  std::array<uint64_t, kOperationNames.size()> errors{};
};

struct Observer {
  // A session has begun, or (0) ended. The keys of an ended session are deleted or soon will be.
  std::function<void(int64_t session)> on_session = [](int64_t) {};
  // The store has become reachable or unreachable. It retries by itself.
  std::function<void(const Health&)> on_health = [](const Health&) {};
};

class Store {
 public:
  virtual ~Store() = default;

  // Begins a session, and begins another whenever one ends. Must be called once, before all else.
  virtual void start(Observer observer) = 0;

  // Reads all keys that begin with `prefix`, as of one revision that includes every change
  // committed before the call. kUnavailable, kTimeout: try again later.
  virtual void get(const std::string& prefix, std::function<void(Result<Snapshot>)> done) = 0;

  // After kUnavailable or kTimeout the outcome is unknown; get() shows it. An ephemeral put without
  // a session fails with kUnavailable.
  virtual void commit(Transaction transaction, std::function<void(Result<Outcome>)> done) = 0;

  // Delivers events of keys that begin with `prefix`, from `revision` (>= 1) on. After a fault it
  // resumes by itself where it stopped.
  virtual std::unique_ptr<Watch> watch(const std::string& prefix, int64_t revision,
                                       WatchHandler handler) = 0;

  virtual int64_t session() const = 0;  // 0: none
  virtual const Health& health() const = 0;
};

// Returns kInvalidArgument if a key is empty or is changed twice.
Status check(const Transaction& transaction);

}  // namespace pbox::cluster
