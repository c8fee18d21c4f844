#include "appliance/cluster/etcd_watch.h"

#include <random>

#include "base/check.h"

namespace pbox::cluster {

std::string range_end(std::string prefix) {
  while (!prefix.empty() && prefix.back() == '\xff') prefix.pop_back();
  if (prefix.empty()) return std::string(1, '\0');
  ++prefix.back();
  return prefix;
}

EtcdWatch::EtcdWatch(EtcdClient& client, std::string prefix, size_t cut, int64_t revision,
                     WatchHandler handler)
    : client_(client),
      prefix_(std::move(prefix)),
      cut_(cut),
      next_(revision),
      handler_(std::move(handler)),
      backoff_(std::random_device{}()),
      timer_(client.context()) {
  PBOX_CHECK(revision >= 1 && cut <= prefix_.size());
  open();
}

EtcdWatch::~EtcdWatch() {
  *alive_ = false;
  if (stream_) stream_->stop();
}

void EtcdWatch::open() {
  client_.with_token([this, alive = alive_](const grpc::Status& known) {
    if (!*alive) return;
    if (!known.ok()) return open_later();
    member_ = client_.current();
    stream_ =
        Stream::start(client_,
                      [this](grpc::ClientContext* context, grpc::CompletionQueue* queue) {
                        return client_.member(member_).watch->PrepareAsyncWatch(context, queue);
                      },
                      {.on_message = [this](const auto& response) { take(response); },
                       .on_end = [this](const grpc::Status& status) { broken(status); }});
    etcdserverpb::WatchRequest request;
    auto& create = *request.mutable_create_request();
    create.set_key(prefix_);
    create.set_range_end(range_end(prefix_));
    create.set_start_revision(next_);
    create.set_progress_notify(true);
    stream_->send(request);
  });
}

void EtcdWatch::open_later() {
  timer_.expires_after(backoff_.next());
  timer_.async_wait([this, alive = alive_](const boost::system::error_code& error) {
    if (!error && *alive) open();
  });
}

void EtcdWatch::broken(const grpc::Status& status) {
  stream_.reset();
  client_.failed(Operation::kWatch, member_, status);
  if (is_stale_token(status)) client_.forget_token();
  open_later();
}

void EtcdWatch::take(const etcdserverpb::WatchResponse& response) {
  if (response.canceled()) {
    stream_->stop();
    if (response.compact_revision() != 0) {
      stream_.reset();
      const auto on_compacted = handler_.on_compacted;  // may destroy this watch
      on_compacted();
    } else {
      // Most likely the token has become invalid: etcd accepts the stream itself without a token.
      client_.forget_token();
      broken({grpc::StatusCode::PERMISSION_DENIED, response.cancel_reason()});
    }
    return;
  }
  if (response.created()) {
    backoff_.reset();
    client_.succeeded();
  } else if (response.events_size() == 0) {
    // Nothing has changed up to that revision.
    next_ = std::max(next_, response.header().revision() + 1);
  }
  deliver(response);
}

void EtcdWatch::deliver(const etcdserverpb::WatchResponse& response) {
  const auto on_events = handler_.on_events;
  const auto alive = alive_;
  std::vector<Event> events;
  for (int i = 0; i < response.events_size(); ++i) {
    const auto& event = response.events(i);
    const auto& kv = event.kv();
    const bool deleted = event.type() == etcdserverpb::Event::DELETE;
    events.push_back({deleted,
                      {kv.key().substr(cut_), kv.value(), deleted ? 0 : kv.create_revision(),
                       kv.mod_revision(), kv.lease()}});
    const bool is_last = i + 1 == response.events_size() ||
                         response.events(i + 1).kv().mod_revision() != kv.mod_revision();
    if (!is_last) continue;
    next_ = kv.mod_revision() + 1;
    on_events(std::exchange(events, {}));
    if (!*alive) return;
  }
}

}  // namespace pbox::cluster
