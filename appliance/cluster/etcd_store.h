// The store of a cluster of boxes: etcd 3.4 or later, through its gRPC interface. It survives the
// loss of some or all members. While none answers, calls fail within seconds. Once etcd is back,
// watches resume where they stopped, and a new session replaces one that has expired.
#pragma once

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "appliance/cluster/store.h"

namespace pbox::cluster {

struct EtcdOptions {
  std::vector<std::string> endpoints = {};  // HOST:PORT of each member; at least one
  std::string prefix = {};    // prefix of every key in etcd, for example "pbox/rack1/"
  uint32_t lease_ttl_s = 10;  // how long the session of a lost box survives, in seconds
  std::string user = {};      // empty: no authentication
  std::string password = {};
  std::string ca = {};  // PEM of the CA that signed the members' certificates; empty: no TLS
  std::string certificate = {};  // PEM of this box's certificate; empty: none
  std::string key = {};          // PEM of the certificate's private key
};

// `context` outlives the store. Does not wait for etcd; health() reports whether etcd answers.
// Starts one thread in addition to gRPC's. All callbacks are called from `context`.
std::unique_ptr<Store> make_etcd_store(boost::asio::io_context& context,
                                       const EtcdOptions& options);

}  // namespace pbox::cluster
