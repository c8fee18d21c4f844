#include "appliance/cluster/completion_loop.h"

#include <boost/asio/post.hpp>
#include <utility>

#include "base/check.h"

namespace pbox::cluster {
namespace {

using Done = std::function<void(bool)>;

}  // namespace

CompletionLoop::CompletionLoop(boost::asio::io_context& context)
    : context_(context), thread_([this] { run(); }) {}

CompletionLoop::~CompletionLoop() {
  close();
}

void* CompletionLoop::tag(std::function<void(bool)> done) {
  PBOX_CHECK(*open_ && done != nullptr);
  return std::make_unique<Done>(std::move(done)).release();  // run() takes ownership again
}

void CompletionLoop::run() {
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) {
    std::unique_ptr<Done> done(static_cast<Done*>(tag));
    boost::asio::post(context_, [open = open_, done = std::move(done), ok] {
      if (*open) (*done)(ok);
    });
  }
}

void CompletionLoop::close() {
  if (!thread_.joinable()) return;
  *open_ = false;
  queue_.Shutdown();
  thread_.join();
}

}  // namespace pbox::cluster
