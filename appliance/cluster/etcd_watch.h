// A watch that outlives the streams it comes by: after a fault it goes on with the revision after
// the last one it delivered. Main thread.
#pragma once

#include <boost/asio/steady_timer.hpp>

#include "appliance/cluster/backoff.h"
#include "appliance/cluster/etcd_stream.h"

namespace pbox::cluster {

class EtcdWatch : public Watch {
 public:
  // `client` outlives the watch. Keys of events come without `cut` bytes at their start.
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
  int64_t next_;  // revision
  WatchHandler handler_;
  Backoff backoff_;
  boost::asio::steady_timer timer_;
  std::shared_ptr<Stream> stream_;
  size_t member_ = 0;  // that has the stream
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

// The key after all that begin with `prefix`, as etcd has it; "\0" for an empty one: there is none.
std::string range_end(std::string prefix);

}  // namespace pbox::cluster
