#include "appliance/cluster/claim.h"

#include <utility>

#include "base/check.h"

namespace pbox::cluster {

Claim::Claim(boost::asio::io_context& context, Store& store, std::string key,
             std::function<std::string()> value, std::function<void()> on_change)
    : store_(store),
      key_(std::move(key)),
      value_(std::move(value)),
      on_change_(std::move(on_change)),
      retry_(context),
      mirror_(context, store, key_, [this] { reconsider(); }) {}

Claim::~Claim() {
  *alive_ = false;
}

// Judges only by what the store shows, so a commit whose answer was lost counts as soon as the key
// appears.
void Claim::reconsider() {
  const KeyValue* holder = this->holder();
  const bool mine =
      holder != nullptr && holder->session != 0 && holder->session == store_.session();
  const int64_t token = mine ? holder->mod_revision : 0;
  PBOX_DCHECK(!mine || mirror_.loaded());
  const int64_t holder_revision = holder == nullptr ? 0 : holder->mod_revision;
  const bool changed = token != token_ || holder_revision != holder_revision_;
  token_ = token;
  holder_revision_ = holder_revision;
  const bool wants_to_write = holder == nullptr || (held() && is_stale_);
  if (wants_to_write && mirror_.loaded() && store_.session() != 0 && !is_writing_) write();
  if (changed) on_change_();
}

// Creates the key, or writes it again if it is held.
void Claim::write() {
  PBOX_CHECK(!is_writing_);
  is_writing_ = true;
  is_stale_ = false;
  store_.commit({.conditions = {{key_, token_}}, .puts = {{key_, value_(), true}}, .deletes = {}},
                [this, alive = alive_](const Result<Outcome>& outcome) {
                  if (!*alive) return;
                  is_writing_ = false;
                  if (outcome && !is_stale_) return;  // the mirror shows which box was first
                  is_stale_ = true;
                  retry_.after(kStoreRetry, [this] { reconsider(); });
                });
}

}  // namespace pbox::cluster
