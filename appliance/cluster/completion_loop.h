// gRPC's completion queue and the thread that drains it. Each completion becomes a call on the
// io_context, so the rest of the client runs on the main thread and needs no lock.
#pragma once

#include <grpcpp/completion_queue.h>

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <thread>

namespace pbox::cluster {

class CompletionLoop {
 public:
  explicit CompletionLoop(boost::asio::io_context& context);
  ~CompletionLoop();  // calls close()
  CompletionLoop(const CompletionLoop&) = delete;
  CompletionLoop& operator=(const CompletionLoop&) = delete;

  grpc::CompletionQueue* queue() { return &queue_; }
  // Returns the tag for one operation of the queue. `done` is called once with gRPC's `ok`. It
  // keeps alive whatever the operation needs until then.
  void* tag(std::function<void(bool ok)> done);
  // Waits until every operation has completed; each must have been cancelled or have a deadline.
  // Calls no `done` from then on. No operation may be started afterwards.
  void close();

 private:
  void run();

  boost::asio::io_context& context_;
  grpc::CompletionQueue queue_;
  std::shared_ptr<bool> open_ = std::make_shared<bool>(true);  // only accessed on the main thread
  std::thread thread_;
};

}  // namespace pbox::cluster
