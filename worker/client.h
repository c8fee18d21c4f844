// A worker's membership in a job: joins, owns the protocol core and the one I/O thread, and turns
// calls from any thread into work for that thread. The C ABI (c_api.cc) is a thin cover over this
// class.
//
// Threads. mutex_ guards what callers and the I/O thread share (operations, requests, the failure).
// The protocol core, the transport and the control connection belong to the I/O thread alone after
// join().
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "worker/control_channel.h"
#include "worker/core.h"
#include "worker/transport.h"

namespace pbox::worker {

struct ClientOptions {
  std::string box = "127.0.0.1:9541";
  std::string job = "default";
  std::string port = "socket";  // as open_transport reads it
  uint32_t rank = 0;
  uint32_t world_size = 1;
  bool optimize = false;
  bool mean = false;
  uint32_t chunk_bytes = 0;   // 0: the box's default
  uint32_t window_bytes = 0;  // 0: what the box grants
  uint32_t path_mtu = 0;      // what JOIN states, to try a path out; 0: what the kernel knows of it
  uint32_t join_timeout_ms = 60'000;
  uint32_t wait_timeout_ms = 60'000;
  uint32_t lost_timeout_ms = 0;  // 0: the box's
};

using Callback = void (*)(void* user, uint32_t tensor, int status);

class Client {
 public:
  explicit Client(ClientOptions options);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Before join.
  Result<uint32_t> register_tensor(TensorSpec tensor);
  Status set_optimizer(const control::Optimizer& optimizer);
  Status set_tensor_optimizer(uint32_t tensor, float lr_scale, float weight_decay);
  Status join();

  struct Exchange {
    uint32_t tensor = 0;
    const void* input = nullptr;
    void* output = nullptr;
    std::optional<int32_t> priority = {};  // else the tensor's
    bool initial_weights = false;
    Callback callback = nullptr;
    void* user = nullptr;
  };
  Status start(const Exchange& exchange);
  Status wait(uint32_t tensor, uint32_t timeout_ms);
  Status wait_all(uint32_t timeout_ms);
  Status set_learning_rate(float learning_rate);
  Status barrier(uint32_t timeout_ms);
  Status leave();

  struct Report {
    Statistics core;
    uint64_t operations_completed = 0, operations_failed = 0;
    uint32_t fragment_bytes = 0, pipeline_count = 0;
  };
  Result<Report> report();

  std::string last_error() const;
  void set_last_error(const std::string& message);
  const ClientOptions& options() const { return options_; }
  // What the box granted. Any thread, once join() has returned ok.
  const control::Session& session() const { return session_; }
  // True in a forked child: nothing of the client may be used there.
  bool forked() const;

 private:
  enum class Phase { kNew, kJoined, kLeft };
  struct Operation {
    bool pending = false;
    bool initialised = false;
    ErrorCode status = ErrorCode::kOk;
    Exchange exchange;
  };
  struct Finished {
    Callback callback;
    void* user;
    uint32_t tensor;
    ErrorCode status;
  };

  // join.cc: on the calling thread, before the I/O thread exists.
  control::WorkerMessage join_message(uint32_t path_mtu) const;
  Result<control::BoxMessage> await_answer(control::BoxMessage::KindCase kind,
                                           const std::string& question);
  Result<uint32_t> path_mtu();
  Status join_box();
  Status open_session(const control::Session& session);
  Status tend_channel();

  // client_io.cc: the I/O thread.
  void run_io();
  bool stopping();
  void finish_io();
  bool exchange_packets(uint64_t now_ns);
  void take_requests();
  void serve_control(uint64_t now_ns);
  void on_message(const control::BoxMessage& message);
  void check_liveness(uint64_t now_ns);
  void complete(const std::vector<uint32_t>& tensors);
  void fail(Error error);
  void run_callbacks(const std::vector<Finished>& finished);
  bool may_spin(uint64_t now_ns) const;
  uint64_t rest_limit_ns(uint64_t now_ns);
  void rest(uint64_t now_ns);
  void wake();

  Status usable(Phase wanted) const;
  Status wait_until(std::unique_lock<std::mutex>& lock, uint32_t timeout_ms,
                    const std::function<bool()>& done);
  Error timeout_error(std::unique_lock<std::mutex>& lock, uint32_t tensor, uint32_t timeout_ms);
  void call_on_io(std::unique_lock<std::mutex>& lock, const std::function<void()>& function);

  ClientOptions options_;
  std::vector<TensorSpec> tensors_;
  control::Optimizer optimizer_;
  control::Session session_;  // set by join(), then constant
  int owner_pid_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Phase phase_ = Phase::kNew;
  std::optional<Error> failure_;
  std::string last_error_;
  std::vector<Operation> operations_;
  std::vector<uint32_t> submitted_;
  std::vector<const std::function<void()>*> calls_;
  std::vector<control::WorkerMessage> outgoing_;
  uint64_t barrier_asked_ = 0, barrier_released_ = 0;
  uint64_t learning_rate_asked_ = 0, learning_rate_set_ = 0;
  uint64_t completed_ = 0, failed_ = 0;
  bool stop_ = false;     // asks the I/O thread to say LEAVE and end
  bool io_done_ = false;  // it has ended

  // The I/O thread's.
  std::optional<ControlChannel> channel_;
  std::optional<Core> core_;
  std::unique_ptr<Transport> transport_;
  bool must_poll_ = false;                // a lane of the transport has no descriptor to wait for
  uint64_t busy_ns_ = 0;                  // when packets last came or went
  uint64_t nap_ns_ = 0;                   // the last one's length; must_poll_ only
  std::map<uint32_t, uint64_t> left_ns_;  // rank to when the box said that it had left
  uint64_t heartbeat_interval_ns_ = 0;
  uint64_t dead_after_ns_ = 0;
  uint64_t heard_ns_ = 0;
  uint64_t heartbeat_due_ns_ = 0;
  uint64_t liveness_due_ns_ = 0;
  uint32_t fragment_bytes_ = 0;
  int wake_fd_ = -1;
  std::thread thread_;
};

}  // namespace pbox::worker
