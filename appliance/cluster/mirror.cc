#include "appliance/cluster/mirror.h"

#include <utility>

#include "base/check.h"

namespace pbox::cluster {

Mirror::Mirror(boost::asio::io_context& context, Store& store, std::string prefix,
               std::function<void()> on_change)
    : store_(store), prefix_(std::move(prefix)), on_change_(std::move(on_change)), retry_(context) {
  read();
}

Mirror::~Mirror() {
  *alive_ = false;
}

const KeyValue* Mirror::find(const std::string& key) const {
  const auto found = entries_.find(key);
  return found == entries_.end() ? nullptr : &found->second;
}

void Mirror::read() {
  watch_.reset();
  store_.get(prefix_, [this, alive = alive_](const Result<Snapshot>& snapshot) {
    if (*alive) follow(snapshot);
  });
}

void Mirror::follow(const Result<Snapshot>& snapshot) {
  if (!snapshot) {
    retry_.after(kStoreRetry, [this] { read(); });
    return;
  }
  PBOX_DCHECK(watch_ == nullptr);
  entries_.clear();
  for (const KeyValue& entry : snapshot->entries) entries_[entry.key] = entry;
  loaded_ = true;
  watch_ = store_.watch(prefix_, snapshot->revision + 1,
                        {.on_events = [this](const std::vector<Event>& events) { take(events); },
                         .on_compacted = [this] { read(); }});
  on_change_();
}

void Mirror::take(const std::vector<Event>& events) {
  PBOX_CHECK(loaded_);
  for (const Event& event : events) {
    if (event.deleted) {
      entries_.erase(event.entry.key);
    } else {
      entries_[event.entry.key] = event.entry;
    }
  }
  on_change_();
}

}  // namespace pbox::cluster
