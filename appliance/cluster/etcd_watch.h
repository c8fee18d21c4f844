// A watch that survives the loss of its streams: after a fault it resumes at the revision after the
// last one it delivered. Main thread.
#pragma once

#include <boost/asio/steady_timer.hpp>

#include "appliance/cluster/backoff.h"
#include "appliance/cluster/etcd_stream.h"

namespace pbox::cluster {

class EtcdWatch : public Watch {
 public:
  // `client` outlives the watch. `cut` bytes are removed from the start of the key of each event.
  EtcdWatch(EtcdClient& client, std::string prefix, size_t cut, int64_t revision,
            WatchHandler handler);
  ~EtcdWatch() override;

 private:
  using Stream = EtcdStream<etcdserverpb::WatchRequest, etcdserverpb::WatchResponse>;

  void open();
  void open_later();
  void take(const etcdserverpb::WatchResponse& response);
  void deliver(const etcdserverpb::WatchResponse& response);
  void broken(const grpc::Status& status);

  EtcdClient& client_;
  std::string prefix_;
  size_t cut_;
  int64_t next_;  // first revision that has not been delivered yet
  WatchHandler handler_;
  Backoff backoff_;
  boost::asio::steady_timer timer_;
  std::shared_ptr<Stream> stream_;
  size_t member_ = 0;  // index of the member that serves the stream
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

// Returns etcd's end of the range of keys that begin with `prefix`: the first key after all of
// them, or "\0" (no end) if `prefix` is empty.
std::string range_end(std::string prefix);

}  // namespace pbox::cluster
