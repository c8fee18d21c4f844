// A key that one box at a time may hold, for as long as its session lasts: its name among the
// boxes, or the lead of the cluster. Whoever finds the key absent makes it; the transaction
// decides.
//
// Holding it is advice: a box that was stopped may believe in it for longer than the store does.
// What only the holder may write carries fence(), and the store refuses it once another holds the
// key: the token, the revision that made the key, is never the same twice. Main thread.
#pragma once

#include "appliance/cluster/mirror.h"

namespace pbox::cluster {

class Claim {
 public:
  // `context` and `store` outlive the claim. value: asked each time the key is made. on_change:
  // whenever the holder, or held(), changes.
  Claim(boost::asio::io_context& context, Store& store, std::string key,
        std::function<std::string()> value, std::function<void()> on_change);
  ~Claim();
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

  // To be called when the store's session has changed.
  void on_session() { reconsider(); }

  bool held() const { return token_ != 0; }
  int64_t token() const { return token_; }  // 0 while not held
  Condition fence() const { return {key_, token_}; }
  const KeyValue* holder() const { return mirror_.find(key_); }  // as last heard; null: nobody

 private:
  void reconsider();
  void make();

  Store& store_;
  std::string key_;
  std::function<std::string()> value_;
  std::function<void()> on_change_;
  boost::asio::steady_timer retry_;
  int64_t token_ = 0;
  int64_t holder_revision_ = 0;
  bool making_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  Mirror mirror_;
};

}  // namespace pbox::cluster
