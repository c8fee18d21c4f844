// A key that at most one box holds, for as long as its session lasts: a name among the boxes, or
// the leadership of the cluster. A box that finds the key absent creates it; if several boxes do,
// the store's transaction lets one succeed. The holder may change the value.
//
// Holding a key is only a hint: a box that was suspended may believe that it holds the key for
// longer than the store does. Therefore every write that only the holder may make carries fence(),
// and the store refuses the write once another box holds the key. The token is the revision in
// which the holder has written the key last; revisions never repeat. Main thread.
#pragma once

#include "appliance/cluster/mirror.h"
#include "base/check.h"

namespace pbox::cluster {

class Claim {
 public:
  // `context` and `store` outlive the claim. `value` is called each time the key is written.
  // `on_change` is called whenever the holder or held() changes.
  Claim(boost::asio::io_context& context, Store& store, std::string key,
        std::function<std::string()> value, std::function<void()> on_change);
  ~Claim();
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

  // Must be called whenever the store's session changes.
  void on_session() { reconsider(); }
  // `value` returns something else now. Writes it if the key is held, which changes token().
  void refresh() {
    is_stale_ = true;
    reconsider();
  }

  bool held() const { return token_ != 0; }
  int64_t token() const { return token_; }  // 0 if not held
  // Only while held: a condition with token 0 would hold when the key does not exist.
  Condition fence() const {
    PBOX_CHECK(held());
    return {key_, token_};
  }
  // Returns the key's entry as last seen in the store; null if no box holds the key.
  const KeyValue* holder() const { return mirror_.find(key_); }

 private:
  void reconsider();
  void write();

  Store& store_;
  std::string key_;
  std::function<std::string()> value_;
  std::function<void()> on_change_;
  Timer retry_;
  int64_t token_ = 0;
  int64_t holder_revision_ = 0;
  bool is_writing_ = false;
  bool is_stale_ = false;  // the key is held with a former value
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  Mirror mirror_;
};

}  // namespace pbox::cluster
