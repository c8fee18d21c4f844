// gRPC's completion queue with the one thread that empties it: each completion becomes a call on
// the io_context, so that everything else of the client runs on the main thread and needs no lock.
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
  ~CompletionLoop();  // close()
  CompletionLoop(const CompletionLoop&) = delete;
  CompletionLoop& operator=(const CompletionLoop&) = delete;

  grpc::CompletionQueue* queue() { return &queue_; }
  // What to hand to one operation of the queue; `done` is called once, with gRPC's ok, and holds
  // whatever must live until then.
  void* tag(std::function<void(bool ok)> done);
  // Waits until every operation has completed, which must have been cancelled or have a deadline.
  // No `done` is called any more. Nothing may be started after it.
  void close();

 private:
  void run();

  boost::asio::io_context& context_;
  grpc::CompletionQueue queue_;
  std::shared_ptr<bool> open_ = std::make_shared<bool>(true);  // read on the main thread only
  std::thread thread_;
};

}  // namespace pbox::cluster
