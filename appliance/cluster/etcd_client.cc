#include "appliance/cluster/etcd_client.h"

#include <grpc/support/log.h>

#include <random>

#include "base/check.h"

namespace pbox::cluster {
namespace {

using grpc::StatusCode;

constexpr std::chrono::milliseconds kRevokeTimeout{500};
// All keys of one kind come in one answer, and gRPC's own limit is 4 MiB. Keys and values are
// bounded where they are made: 1,000 part maps of the largest size take 20 MiB.
constexpr int kAnswerBytesMax = 64 << 20;

std::shared_ptr<grpc::ChannelCredentials> credentials(const EtcdOptions& options) {
  if (options.ca.empty()) return grpc::InsecureChannelCredentials();
  return grpc::SslCredentials({.pem_root_certs = options.ca,
                               .pem_private_key = options.key,
                               .pem_cert_chain = options.certificate});
}

grpc::ChannelArguments channel_arguments() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2'000);  // also the connect timeout
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2'000);
  // A suspended member keeps its connections open; only a ping detects it. etcd closes connections
  // that ping more often than every 5 s.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 6'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 2'000);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetMaxReceiveMessageSize(kAnswerBytesMax);
  return arguments;
}

ErrorCode code_of(const grpc::Status& status) {
  switch (status.error_code()) {
    case StatusCode::UNAVAILABLE: return ErrorCode::kUnavailable;
    case StatusCode::DEADLINE_EXCEEDED: return ErrorCode::kTimeout;
    case StatusCode::NOT_FOUND: return ErrorCode::kUnavailable;  // the lease has expired
    case StatusCode::RESOURCE_EXHAUSTED: return ErrorCode::kResourceExhausted;
    case StatusCode::INVALID_ARGUMENT:
    case StatusCode::PERMISSION_DENIED:
    case StatusCode::UNAUTHENTICATED: return ErrorCode::kInvalidArgument;
    default: return is_transient(status) ? ErrorCode::kUnavailable : ErrorCode::kInternal;
  }
}

std::string remedy(const EtcdOptions& options, const grpc::Status& status) {
  switch (code_of(status)) {
    case ErrorCode::kInvalidArgument:
      return options.user.empty()
                 ? "; does etcd require a user? Set [cluster] user and password_file"
                 : "; check [cluster] user = " + options.user + " and password_file";
    case ErrorCode::kUnavailable:
    case ErrorCode::kTimeout:
      return "; check etcd and [cluster] endpoints" +
             std::string(options.ca.empty() ? "" : ", ca_file");
    case ErrorCode::kResourceExhausted:
      return "; etcd is out of space or overloaded. If out of space: compact and defragment it, or "
             "raise --quota-backend-bytes, then run 'etcdctl alarm disarm'";
    default: return "";
  }
}

}  // namespace

bool is_transient(const grpc::Status& status) {
  switch (status.error_code()) {
    case StatusCode::UNAVAILABLE:
    case StatusCode::DEADLINE_EXCEEDED:
    case StatusCode::CANCELLED:
    case StatusCode::ABORTED:
    case StatusCode::UNKNOWN:
    case StatusCode::INTERNAL: return true;
    default: return false;
  }
}

bool is_stale_token(const grpc::Status& status) {
  return status.error_code() == StatusCode::UNAUTHENTICATED ||
         status.error_message().find("auth store is old") != std::string::npos;
}

EtcdClient::EtcdClient(boost::asio::io_context& context, const EtcdOptions& options)
    : context_(context), options_(options), loop_(context) {
  PBOX_CHECK(!options.endpoints.empty());
  gpr_set_log_function([](gpr_log_func_args*) {});  // health_ reports errors instead
  for (const std::string& endpoint : options.endpoints) {
    const auto channel =
        grpc::CreateCustomChannel(endpoint, credentials(options), channel_arguments());
    members_.push_back({endpoint, etcdserverpb::KV::NewStub(channel),
                        etcdserverpb::Watch::NewStub(channel),
                        etcdserverpb::Lease::NewStub(channel), etcdserverpb::Auth::NewStub(channel),
                        etcdserverpb::Maintenance::NewStub(channel)});
  }
  // Boxes with the same configuration should not all ask the same member.
  current_ = std::random_device{}() % members_.size();
}

EtcdClient::~EtcdClient() {
  for (grpc::ClientContext* context : live_) context->TryCancel();
  loop_.close();
}

void EtcdClient::prepare(grpc::ClientContext& context) const {
  if (!token_.empty()) context.AddMetadata("token", token_);
  // Makes a member that is cut off from the other members fail the call instead of staying silent.
  context.AddMetadata("hasleader", "true");
}

void EtcdClient::with_token(std::function<void(const grpc::Status&)> then) {
  if (options_.user.empty() || !token_.empty()) return then(grpc::Status::OK);
  waiting_.push_back(std::move(then));
  if (waiting_.size() == 1) authenticate();
}

void EtcdClient::authenticate() {
  PBOX_DCHECK(!waiting_.empty());
  const size_t index = current_;
  const auto call = std::make_shared<internal::Call<etcdserverpb::AuthenticateResponse>>();
  call->context.set_deadline(std::chrono::system_clock::now() + kCallTimeout);
  live_.insert(&call->context);
  etcdserverpb::AuthenticateRequest request;
  request.set_name(options_.user);
  request.set_password(options_.password);
  call->reader = members_[index].auth->AsyncAuthenticate(&call->context, request, loop_.queue());
  call->reader->Finish(&call->response, &call->status, loop_.tag([=, this](bool) {
    live_.erase(&call->context);
    if (call->status.ok()) {
      token_ = call->response.token();
    } else {
      failed(Operation::kAuthenticate, index, call->status);
    }
    for (const auto& then : std::exchange(waiting_, {})) then(call->status);
  }));
}

void EtcdClient::succeeded() {
  failed_members_.clear();
  if (health_.up || is_full_) return;
  health_.up = true;
  health_.error.clear();
  reported_ = true;
  on_health(health_);
}

void EtcdClient::failed(Operation operation, size_t index, const grpc::Status& status) {
  PBOX_CHECK(index < members_.size());
  ++health_.errors[static_cast<size_t>(operation)];
  if (is_transient(status)) {
    if (index == current_) current_ = (current_ + 1) % members_.size();
    failed_members_.insert(index);
    if (failed_members_.size() < members_.size()) return;
  } else {
    // Other errors are answers, so the member is alive. A user without the right to ask for the
    // status may still read and write.
    const ErrorCode code = code_of(status);
    const bool is_unusable =
        code == ErrorCode::kInvalidArgument || code == ErrorCode::kResourceExhausted;
    if (operation == Operation::kStatus || !is_unusable) return;
  }
  report_down(error(operation, index, status));
}

void EtcdClient::report_down(const Error& error) {
  health_.error = error.message;
  if (!health_.up && reported_) return;
  health_.up = false;
  reported_ = true;
  on_health(health_);
}

void EtcdClient::set_full(bool is_full, size_t index, const grpc::Status& status) {
  PBOX_CHECK(index < members_.size());
  if (is_full == is_full_) return;
  is_full_ = is_full;
  if (is_full) return report_down(error(Operation::kCommit, index, status));
  succeeded();
}

Error EtcdClient::error(Operation operation, size_t index, const grpc::Status& status) const {
  return {code_of(status), "etcd " + members_[index].endpoint + ", " +
                               kOperationNames[static_cast<size_t>(operation)] + ": " +
                               status.error_message() + remedy(options_, status)};
}

void EtcdClient::revoke(int64_t lease) {
  PBOX_CHECK(lease != 0);
  const auto call = std::make_shared<internal::Call<etcdserverpb::LeaseRevokeResponse>>();
  prepare(call->context);
  call->context.set_deadline(std::chrono::system_clock::now() + kRevokeTimeout);
  etcdserverpb::LeaseRevokeRequest request;
  request.set_id(lease);
  call->reader = members_[current_].lease->AsyncLeaseRevoke(&call->context, request, loop_.queue());
  call->reader->Finish(&call->response, &call->status, loop_.tag([call](bool) {}));
}

}  // namespace pbox::cluster
