#include "appliance/cluster/scale_hook.h"

#include <unistd.h>

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/process/args.hpp>
#include <boost/process/async.hpp>
#include <boost/process/child.hpp>
#include <boost/process/handles.hpp>
#include <boost/process/io.hpp>
#include <cerrno>
#include <chrono>
#include <deque>
#include <optional>
#include <system_error>
#include <utility>

namespace pbox::cluster {

namespace process = boost::process;

// Handlers hold a weak pointer to the state: a program that ends after the hook was destroyed is
// not reported.
struct ScaleHook::State : std::enable_shared_from_this<State> {
  struct Call {
    std::string line;
    std::function<void(Status)> done;
  };

  State(boost::asio::io_context& io_context, std::string path)
      : context(io_context), program(std::move(path)), timeout(io_context) {}

  void start();
  void on_exit(int status);
  void end(const Status& status);

  boost::asio::io_context& context;
  std::string program;
  std::deque<Call> calls;  // the first one runs
  std::optional<process::child> child;
  boost::asio::steady_timer timeout;
  bool timed_out = false;
};

void ScaleHook::State::start() {
  // With limit_handles, Boost.Process does not notice that a program could not be run.
  if (access(program.c_str(), X_OK) != 0) {
    return end(system_error(program + " cannot be run", errno));
  }
  std::error_code error;
  timed_out = false;
  child.emplace(
      program, process::args = {calls.front().line}, process::std_in < process::null,
      process::limit_handles, context, error,
      process::on_exit = [weak = weak_from_this()](int status, const std::error_code&) {
        const auto self = weak.lock();
        if (!self) return;
        // Boost.Process is still going through its children: start none before it is done.
        boost::asio::post(self->context, [weak, status] {
          if (const auto still = weak.lock()) still->on_exit(status);
        });
      });
  if (error) {
    child.reset();
    return end(Error{ErrorCode::kSystem, program + " cannot be run: " + error.message()});
  }
  timeout.expires_after(std::chrono::seconds(kTimeoutSeconds));
  timeout.async_wait([weak = weak_from_this()](const boost::system::error_code& cancelled) {
    const auto self = weak.lock();
    if (cancelled || !self || !self->child) return;
    self->timed_out = true;
    std::error_code ignored;  // it may have ended in this moment
    self->child->terminate(ignored);
  });
}

void ScaleHook::State::on_exit(int status) {
  timeout.cancel();
  child.reset();
  if (timed_out) {
    return end(Error{ErrorCode::kTimeout, program + " ran for longer than " +
                                              std::to_string(kTimeoutSeconds) +
                                              " s and was killed; let it only begin what takes "
                                              "longer"});
  }
  if (status != 0) {
    return end(Error{ErrorCode::kSystem, program + " exited with status " + std::to_string(status) +
                                             "; its messages are in the journal"});
  }
  end(ok_status());
}

void ScaleHook::State::end(const Status& status) {
  const Call call = std::move(calls.front());
  calls.pop_front();
  if (!calls.empty()) start();
  call.done(status);
}

ScaleHook::ScaleHook(boost::asio::io_context& context, std::string program)
    : state_(std::make_shared<State>(context, std::move(program))) {}

ScaleHook::~ScaleHook() {
  if (!state_->child) return;
  std::error_code ignored;
  state_->child->terminate(ignored);
}

void ScaleHook::call(std::string line, std::function<void(Status)> done) {
  state_->calls.push_back({std::move(line), std::move(done)});
  if (state_->calls.size() == 1) state_->start();
}

}  // namespace pbox::cluster
