#include "tests/sim/store_server.h"

#include <algorithm>
#include <utility>

#include "tests/sim/violation.h"

namespace pbox::sim {

cluster::Snapshot StoreServer::get(const std::string& prefix) const {
  cluster::Snapshot snapshot{.entries = {}, .revision = revision_};
  for (auto entry = entries_.lower_bound(prefix);
       entry != entries_.end() && entry->first.starts_with(prefix); ++entry) {
    snapshot.entries.push_back(entry->second);
  }
  return snapshot;
}

cluster::Outcome StoreServer::commit(const cluster::Transaction& transaction, int64_t session) {
  require(cluster::check(transaction).ok(), "a box commits an invalid transaction");
  for (const cluster::Condition& condition : transaction.conditions) {
    const auto found = entries_.find(condition.key);
    const int64_t revision = found == entries_.end() ? 0 : found->second.mod_revision;
    if (revision != condition.mod_revision) return {};
  }
  ++revision_;
  Events events;
  for (const cluster::Put& put : transaction.puts) {
    cluster::KeyValue& entry = entries_[put.key];
    if (entry.mod_revision == 0) entry.create_revision = revision_;
    entry.key = put.key;
    entry.value = put.value;
    entry.mod_revision = revision_;
    entry.session = put.ephemeral ? session : 0;
    events.push_back({.deleted = false, .entry = entry});
  }
  for (const std::string& key : transaction.deletes) {
    if (entries_.erase(key) == 0) continue;
    events.push_back({.deleted = true, .entry = {.key = key, .mod_revision = revision_}});
  }
  publish(std::move(events));
  return {.committed = true, .revision = revision_};
}

int64_t StoreServer::begin_session() {
  sessions_.insert(next_session_);
  return next_session_++;
}

void StoreServer::end_session(int64_t session) {
  if (sessions_.erase(session) == 0) return;
  ++revision_;
  Events events;
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const bool is_of_session = entry->second.session == session;
    if (is_of_session) {
      events.push_back(
          {.deleted = true, .entry = {.key = entry->first, .mod_revision = revision_}});
    }
    entry = is_of_session ? entries_.erase(entry) : std::next(entry);
  }
  publish(std::move(events));
}

uint64_t StoreServer::watch(const std::string& prefix, int64_t revision, Listener listener) {
  const uint64_t number = next_watch_++;
  const Watch& watch = watches_[number] = {prefix, std::move(listener)};
  for (const Events& events : history_) {
    if (events.front().entry.mod_revision >= revision) tell(watch, events);
  }
  return number;
}

void StoreServer::publish(Events events) {
  if (events.empty()) return;
  history_.push_back(std::move(events));
  for (const auto& [number, watch] : watches_) tell(watch, history_.back());
}

void StoreServer::tell(const Watch& watch, const Events& events) {
  Events seen;
  for (const cluster::Event& event : events) {
    if (event.entry.key.starts_with(watch.prefix)) seen.push_back(event);
  }
  if (!seen.empty()) watch.listener(seen);
}

}  // namespace pbox::sim
