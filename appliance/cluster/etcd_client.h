// Treats the members of an etcd cluster as one server: it asks one member at a time and moves to
// the next after a fault. Keeps the user's token and counts errors. Main thread.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "appliance/cluster/completion_loop.h"
#include "appliance/cluster/etcd.grpc.pb.h"
#include "appliance/cluster/etcd_store.h"

namespace pbox::cluster {

class EtcdClient {
 public:
  struct Member {
    std::string endpoint;
    std::unique_ptr<etcdserverpb::KV::Stub> kv;
    std::unique_ptr<etcdserverpb::Watch::Stub> watch;
    std::unique_ptr<etcdserverpb::Lease::Stub> lease;
    std::unique_ptr<etcdserverpb::Auth::Stub> auth;
    std::unique_ptr<etcdserverpb::Maintenance::Stub> maintenance;
  };

  EtcdClient(boost::asio::io_context& context, const EtcdOptions& options);
  ~EtcdClient();

  // Starts a call and reports its result within kCallTimeout. `start(member, context)` returns the
  // reader. If the token has become invalid, the call is repeated once with a new token.
  template <typename Response, typename Start>
  void call(Operation operation, Start start,
            std::function<void(const grpc::Status&, const Response&)> done, bool is_retry = false);

  // Prepares `context` for a call or a stream: adds the token and the requirements on the member.
  void prepare(grpc::ClientContext& context) const;
  // Calls `then` once a token is available, or with the reason why there is none.
  void with_token(std::function<void(const grpc::Status&)> then);
  void forget_token() { token_.clear(); }

  const Member& member(size_t index) const { return members_[index]; }
  size_t member_count() const { return members_.size(); }
  size_t current() const { return current_; }
  void succeeded();
  // Records a fault of member `index` and selects another member for the calls that follow.
  void failed(Operation operation, size_t index, const grpc::Status& status);

  // Records that etcd has no space left, or has space again. Without space it answers reads and
  // refuses changes, which counts as down although calls succeed.
  void set_full(bool is_full, size_t index, const grpc::Status& status);
  bool is_full() const { return is_full_; }

  // Returns the error of an operation that ended with `status`.
  Error error(Operation operation, size_t index, const grpc::Status& status) const;

  // Revokes the lease without waiting for the answer.
  void revoke(int64_t lease);

  CompletionLoop& loop() { return loop_; }
  boost::asio::io_context& context() { return context_; }
  const Health& health() const { return health_; }
  std::set<grpc::ClientContext*>& live() { return live_; }  // calls that the destructor cancels

  std::function<void(const Health&)> on_health = [](const Health&) {};

  static constexpr std::chrono::milliseconds kCallTimeout{2'000};

 private:
  void authenticate();
  void report_down(const Error& error);

  boost::asio::io_context& context_;
  EtcdOptions options_;
  std::vector<Member> members_;
  size_t current_ = 0;
  std::set<size_t> failed_members_;  // members that have failed since any member last succeeded
  bool is_full_ = false;             // etcd refuses changes for lack of space
  bool reported_ = false;            // whether on_health has been called yet
  Health health_;
  std::string token_;
  std::vector<std::function<void(const grpc::Status&)>> waiting_;  // calls that wait for a token
  std::set<grpc::ClientContext*> live_;
  CompletionLoop loop_;
};

// Returns whether the member did not do what it was asked, and another member may. A member that
// ends or hands the lead over answers UNKNOWN, INTERNAL or CANCELLED ("Stream removed", "raft
// proposal dropped").
bool is_transient(const grpc::Status& status);

// Returns whether a call failed because its token has expired or predates a change of etcd's users.
bool is_stale_token(const grpc::Status& status);

namespace internal {

template <typename Response>
struct Call {
  grpc::ClientContext context;
  Response response;
  grpc::Status status;
  std::unique_ptr<grpc::ClientAsyncResponseReader<Response>> reader;
};

}  // namespace internal

template <typename Response, typename Start>
void EtcdClient::call(Operation operation, Start start,
                      std::function<void(const grpc::Status&, const Response&)> done,
                      bool is_retry) {
  with_token([=, this](const grpc::Status& known) {
    if (!known.ok()) return done(known, {});
    const size_t index = current_;
    const std::string token = token_;
    const auto call = std::make_shared<internal::Call<Response>>();
    prepare(call->context);
    call->context.set_deadline(std::chrono::system_clock::now() + kCallTimeout);
    live_.insert(&call->context);
    call->reader = start(members_[index], call->context);
    call->reader->Finish(&call->response, &call->status, loop_.tag([=, this](bool) {
      live_.erase(&call->context);
      if (is_stale_token(call->status) && !is_retry) {
        if (token_ == token) token_.clear();
        return this->call<Response>(operation, start, done, true);
      }
      if (call->status.ok()) {
        succeeded();
      } else {
        failed(operation, index, call->status);
      }
      done(call->status, call->response);
    }));
  });
}

}  // namespace pbox::cluster
