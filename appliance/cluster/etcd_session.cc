#include "appliance/cluster/etcd_session.h"

#include <random>

#include "base/check.h"

namespace pbox::cluster {

EtcdSession::EtcdSession(EtcdClient& client, std::chrono::seconds ttl,
                         std::function<void(int64_t)> on_change)
    : client_(client),
      ttl_(ttl),
      on_change_(std::move(on_change)),
      backoff_(std::random_device{}()),
      timer_(client.context()) {
  grant();
}

EtcdSession::~EtcdSession() {
  close();
  if (lease_ != 0) client_.revoke(lease_);
}

void EtcdSession::grant() {
  const auto asked = Clock::now();
  etcdserverpb::LeaseGrantRequest request;
  request.set_ttl(ttl_.count());
  client_.call<etcdserverpb::LeaseGrantResponse>(
      Operation::kLease,
      [this, request](const EtcdClient::Member& member, grpc::ClientContext& context) {
        return member.lease->AsyncLeaseGrant(&context, request, client_.loop().queue());
      },
      [this, asked](const grpc::Status& status, const etcdserverpb::LeaseGrantResponse& response) {
        if (!status.ok()) return grant_later();
        granted(response.id(), asked);
      });
}

void EtcdSession::grant_later() {
  timer_.expires_after(backoff_.next());
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) grant();
  });
}

void EtcdSession::granted(int64_t lease, Clock::time_point asked) {
  backoff_.reset();
  lease_ = lease;
  renewed_ = asked;
  open();
  beat_in(beat_interval());
  on_change_(lease_);
}

void EtcdSession::open() {
  PBOX_DCHECK(stream_ == nullptr);
  member_ = client_.current();
  is_asked_ = false;
  stream_ = Stream::start(client_,
                          [this](grpc::ClientContext* context, grpc::CompletionQueue* queue) {
                            return client_.member(member_).lease->PrepareAsyncLeaseKeepAlive(
                                context, queue);
                          },
                          {.on_message = [this](const auto& response) { answered(response); },
                           .on_end = [this](const grpc::Status& status) { broken(status); }});
}

void EtcdSession::close() {
  if (stream_) stream_->stop();
  stream_.reset();
  timer_.cancel();
}

void EtcdSession::beat_in(std::chrono::milliseconds pause) {
  PBOX_DCHECK(pause.count() >= 0);
  timer_.expires_after(pause);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) beat();
  });
}

void EtcdSession::beat() {
  if (lease_ == 0) return;  // the lease was lost while this call was queued
  if (Clock::now() - renewed_ >= ttl_) return lost();
  if (stream_ && is_asked_) {  // the member has not answered the last renewal
    client_.failed(Operation::kLease, member_, {grpc::StatusCode::DEADLINE_EXCEEDED, "no answer"});
    stream_->stop();
    stream_.reset();
  }
  if (!stream_) open();
  PBOX_DCHECK(!is_asked_);
  asked_ = Clock::now();
  is_asked_ = true;
  etcdserverpb::LeaseKeepAliveRequest request;
  request.set_id(lease_);
  stream_->send(request);
  beat_in(beat_interval());
}

void EtcdSession::answered(const etcdserverpb::LeaseKeepAliveResponse& response) {
  is_asked_ = false;
  client_.succeeded();
  if (response.ttl() <= 0) return lost();
  renewed_ = asked_;
  backoff_.reset();
}

void EtcdSession::broken(const grpc::Status& status) {
  stream_.reset();
  client_.failed(Operation::kLease, member_, status);
  if (is_stale_token(status)) client_.forget_token();
  beat_in(backoff_.next());  // the next attempt uses another member
}

void EtcdSession::lost() {
  if (lease_ == 0) return;
  close();
  lease_ = 0;
  on_change_(0);
  grant_later();
}

}  // namespace pbox::cluster
