// Keeps an etcd lease alive and requests a new one after it has expired. Main thread.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <chrono>

#include "appliance/cluster/backoff.h"
#include "appliance/cluster/etcd_stream.h"

namespace pbox::cluster {

class EtcdSession {
 public:
  // `on_change` is called with a new lease when it has been granted, and with 0 when it has ended.
  EtcdSession(EtcdClient& client, std::chrono::seconds ttl,
              std::function<void(int64_t lease)> on_change);
  ~EtcdSession();  // revokes the lease
  EtcdSession(const EtcdSession&) = delete;
  EtcdSession& operator=(const EtcdSession&) = delete;

  int64_t lease() const { return lease_; }  // 0: none
  // Must be called when etcd reports that it does not know the lease.
  void lost();

 private:
  using Clock = std::chrono::steady_clock;
  using Stream =
      EtcdStream<etcdserverpb::LeaseKeepAliveRequest, etcdserverpb::LeaseKeepAliveResponse>;

  void grant();
  void granted(int64_t lease, Clock::time_point asked);
  void grant_later();
  void open();
  void close();
  void beat();
  void beat_in(std::chrono::milliseconds pause);
  std::chrono::milliseconds beat_interval() const { return std::chrono::milliseconds(ttl_) / 3; }
  void answered(const etcdserverpb::LeaseKeepAliveResponse& response);
  void broken(const grpc::Status& status);

  EtcdClient& client_;
  std::chrono::seconds ttl_;
  std::function<void(int64_t)> on_change_;
  Backoff backoff_;
  boost::asio::steady_timer timer_;
  int64_t lease_ = 0;
  std::shared_ptr<Stream> stream_;
  size_t member_ = 0;          // index of the member that serves the stream
  Clock::time_point renewed_;  // when the last answered renewal was sent
  Clock::time_point asked_;
  bool is_asked_ = false;  // a renewal has been sent and not answered yet
};

}  // namespace pbox::cluster
