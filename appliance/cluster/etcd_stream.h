// One bidirectional stream to a member of etcd. Main thread.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "appliance/cluster/etcd_client.h"
#include "base/check.h"

namespace pbox::cluster {

template <typename Request, typename Response>
class EtcdStream : public std::enable_shared_from_this<EtcdStream<Request, Response>> {
 public:
  using Link = grpc::ClientAsyncReaderWriter<Request, Response>;
  struct Handler {
    std::function<void(const Response&)> on_message;
    std::function<void(const grpc::Status&)> on_end;  // called once
  };

  // `make(context, queue)` prepares the call at the member. The client outlives the stream.
  // Everything that the handler uses must live until stop() or on_end.
  template <typename Make>
  static std::shared_ptr<EtcdStream> start(EtcdClient& client, Make make, Handler handler) {
    const std::shared_ptr<EtcdStream> stream(new EtcdStream(client, std::move(handler)));
    client.prepare(stream->context_);
    client.live().insert(&stream->context_);
    stream->link_ = make(&stream->context_, client.loop().queue());
    stream->link_->StartCall(client.loop().tag([stream](bool ok) { stream->started(ok); }));
    return stream;
  }

  void send(Request request) {
    outgoing_.push_back(std::move(request));
    write();
  }

  // Cancels the stream; the handler is not called again.
  void stop() {
    handler_ = {};
    context_.TryCancel();
  }

 private:
  EtcdStream(EtcdClient& client, Handler handler) : client_(client), handler_(std::move(handler)) {}

  void* tag(void (EtcdStream::*step)(bool)) {
    return client_.loop().tag(
        [self = this->shared_from_this(), step](bool ok) { ((*self).*step)(ok); });
  }

  void started(bool ok) {
    PBOX_DCHECK(!is_started_);
    if (!ok) return finish();
    is_started_ = true;
    write();
    link_->Read(&incoming_, tag(&EtcdStream::was_read));
  }

  void write() {
    if (!is_started_ || is_writing_ || is_ending_ || outgoing_.empty()) return;
    is_writing_ = true;
    const Request request = std::move(outgoing_.front());
    outgoing_.pop_front();
    link_->Write(request, tag(&EtcdStream::written));
  }

  void written(bool ok) {
    PBOX_DCHECK(is_writing_);
    is_writing_ = false;
    if (ok) write();  // else the read fails too and ends the stream
  }

  void was_read(bool ok) {
    if (!ok) return finish();
    if (const auto on_message = handler_.on_message) on_message(incoming_);
    link_->Read(&incoming_, tag(&EtcdStream::was_read));
  }

  void finish() {
    PBOX_DCHECK(!is_ending_);
    is_ending_ = true;
    link_->Finish(&status_, tag(&EtcdStream::finished));
  }

  void finished(bool) {
    client_.live().erase(&context_);
    if (const auto on_end = std::exchange(handler_, {}).on_end) on_end(status_);
  }

  EtcdClient& client_;
  Handler handler_;
  grpc::ClientContext context_;
  std::unique_ptr<Link> link_;
  std::deque<Request> outgoing_;
  Response incoming_;
  grpc::Status status_;
  bool is_started_ = false;
  bool is_writing_ = false;
  bool is_ending_ = false;
};

}  // namespace pbox::cluster
