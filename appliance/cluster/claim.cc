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
  if (holder == nullptr && mirror_.loaded() && store_.session() != 0 && !making_) make();
  if (changed) on_change_();
}

void Claim::make() {
  PBOX_CHECK(!making_);
  making_ = true;
  store_.commit({.conditions = {{key_, 0}}, .puts = {{key_, value_(), true}}, .deletes = {}},
                [this, alive = alive_](const Result<Outcome>& outcome) {
                  if (!*alive) return;
                  making_ = false;
                  if (outcome) return;  // the mirror shows which box was first
                  retry_.after(kStoreRetry, [this] { reconsider(); });
                });
}

}  // namespace pbox::cluster
