// Watches whether etcd has space left. A full etcd raises the alarm NOSPACE: it answers reads and
// renews leases, but refuses every change until an operator has freed space and disarmed the alarm.
// Boxes write seldom, so they ask for the alarm instead of waiting for a write to fail. Main
// thread.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <chrono>

#include "appliance/cluster/etcd_client.h"

namespace pbox::cluster {

class EtcdSpace {
 public:
  // Asks at once and then once per `interval`; reports to client.set_full(). `client` outlives it.
  EtcdSpace(EtcdClient& client, std::chrono::milliseconds interval);
  EtcdSpace(const EtcdSpace&) = delete;
  EtcdSpace& operator=(const EtcdSpace&) = delete;

  // Must be called with the result of each call that changes something in etcd.
  void on_change(const grpc::Status& status);

 private:
  void ask();
  void ask_later();

  EtcdClient& client_;
  std::chrono::milliseconds interval_;
  boost::asio::steady_timer timer_;
};

}  // namespace pbox::cluster
