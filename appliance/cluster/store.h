// What the boxes of a cluster agree on: a small ordered map of texts in which every change has a
// revision. One interface, two stores: LocalStore, a file of one box, and EtcdStore. Both keep the
// same promises, and tests/unit/appliance/cluster holds both to them.
//
// Main thread only. Nothing here blocks on a network: every answer comes through a callback, which
// the daemon's io_context calls later, never inside the call that asked, and never once the store
// is destroyed.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"

namespace pbox::cluster {

// Revisions count the changes of the whole store: they ascend, and start at 1 or above.
struct KeyValue {
  std::string key = {};
  std::string value = {};
  int64_t create_revision = 0;  // of the change that made the key, after its last deletion if any
  int64_t mod_revision = 0;     // of the last change
  int64_t session = 0;          // whose end deletes the key; 0: it stays
};

struct Snapshot {
  std::vector<KeyValue> entries;  // ascending by key
  int64_t revision = 0;           // a watch from revision + 1 on misses nothing
};

struct Condition {
  std::string key;
  int64_t mod_revision = 0;  // 0: there is no such key
};

struct Put {
  std::string key;
  std::string value;
  bool ephemeral = false;  // bound to the session of this store
};

// All or nothing, if every condition holds. No key may be changed twice.
struct Transaction {
  std::vector<Condition> conditions;
  std::vector<Put> puts;
  std::vector<std::string> deletes;  // of keys; one that is not there is none
};

struct Outcome {
  bool committed = false;  // false: a condition did not hold, nothing was changed
  int64_t revision = 0;    // of the change if it was committed
};

struct Event {
  bool deleted = false;
  KeyValue entry;  // when deleted only key and mod_revision
};

struct WatchHandler {
  // In order of revision, each change once; the events of one transaction arrive together.
  std::function<void(const std::vector<Event>&)> on_events;
  // The store no longer has all that was asked for: get() again and watch from there. Nothing
  // follows from this watch.
  std::function<void()> on_compacted;
};

// Ends the watch when destroyed. The store must outlive it.
class Watch {
 public:
  virtual ~Watch() = default;
};

enum class Operation { kGet, kCommit, kWatch, kLease, kAuthenticate };
inline constexpr std::array<const char*, 5> kOperationNames = {"get", "commit", "watch", "lease",
                                                               "authenticate"};

struct Health {
  bool up = false;
  std::string error;  // while down: why
  std::array<uint64_t, kOperationNames.size()> errors{};
};

struct Observer {
  // A session has begun, or (0) ended: then its keys are gone, or will soon be.
  std::function<void(int64_t session)> on_session = [](int64_t) {};
  // The store has come up, or gone down: it is asked again and again, and nothing needs to be done.
  std::function<void(const Health&)> on_health = [](const Health&) {};
};

class Store {
 public:
  virtual ~Store() = default;

  // Begins the session, and begins another whenever one ends. Once, before all else.
  virtual void start(Observer observer) = 0;

  // All keys that begin with `prefix`, as of one revision that is not older than any change that
  // was committed before the call. kUnavailable, kTimeout: try again later.
  virtual void get(const std::string& prefix, std::function<void(Result<Snapshot>)> done) = 0;

  // kUnavailable and kTimeout: nobody knows whether it was committed; get() shows. An ephemeral put
  // without a session: kUnavailable.
  virtual void commit(Transaction transaction, std::function<void(Result<Outcome>)> done) = 0;

  // Events of keys that begin with `prefix`, from `revision` (>= 1) on. Goes on by itself after
  // faults, where it was.
  virtual std::unique_ptr<Watch> watch(const std::string& prefix, int64_t revision,
                                       WatchHandler handler) = 0;

  virtual int64_t session() const = 0;  // 0: none
  virtual const Health& health() const = 0;
};

// kInvalidArgument if a key is empty, or is changed twice.
Status check(const Transaction& transaction);

}  // namespace pbox::cluster
