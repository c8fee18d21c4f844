// The clocks and the connections to other boxes that the classes of the cluster use. All classes on
// one io_context share its environment: the machine's clocks, and TCP. A simulator installs its own
// environment in its io_context before it makes anything else there. Main thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/result.h"
#include "nic/tls/connection.h"
#include "nic/wire/control.pb.h"

namespace pbox::cluster {

class Environment : public boost::asio::execution_context::service {
 public:
  using Clock = std::chrono::steady_clock;
  using Answer = std::function<void(Result<proto::BoxMessage>)>;

  static boost::asio::execution_context::id id;
  // Returns the environment of the io_context; makes it if there is none yet.
  static Environment& of(boost::asio::io_context& context);

  explicit Environment(boost::asio::execution_context& context);

  virtual Clock::time_point now() const { return Clock::now(); }
  // This box's wall clock. For display and for decisions that need not be exact.
  virtual uint64_t unix_seconds() const;
  // Calls `function` after this call has returned.
  virtual void post(std::function<void()> function);
  // Calls `function` after `wait`, unless the returned object is destroyed before.
  virtual std::shared_ptr<void> after(Clock::duration wait, std::function<void()> function);
  // Sets the box's keys, with which ask_box() proves this box's identity. `name_of` returns the
  // name that the box with this control address must prove; "" accepts any box of the cluster.
  using NameOf = std::function<std::string(const std::string& control)>;
  void set_keys(std::shared_ptr<const tls::Client> keys, NameOf name_of) {
    keys_ = std::move(keys);
    name_of_ = std::move(name_of);
  }
  // See ask_box() in ask_box.h.
  virtual void ask_box(const std::string& control, const proto::WorkerMessage& question,
                       std::chrono::milliseconds timeout, Answer done);

 private:
  void shutdown() override {}

  std::shared_ptr<const tls::Client> keys_;  // null: questions are sent without TLS
  NameOf name_of_;
};

// Calls a function once, later. Never calls it after the timer was destroyed or set anew.
class Timer {
 public:
  explicit Timer(boost::asio::io_context& context) : environment_(Environment::of(context)) {}
  ~Timer() { cancel(); }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  void after(Environment::Clock::duration wait, std::function<void()> function) {
    cancel();
    is_set_ = std::make_shared<bool>(true);
    wait_ = environment_.after(wait, [is_set = is_set_, function = std::move(function)] {
      if (std::exchange(*is_set, false)) function();
    });
  }

 private:
  void cancel() {
    if (is_set_) *is_set_ = false;
    wait_.reset();
  }

  Environment& environment_;
  std::shared_ptr<bool> is_set_;
  std::shared_ptr<void> wait_;
};

}  // namespace pbox::cluster
