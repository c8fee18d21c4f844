// The store of a cluster of boxes: etcd 3.4 or later, by its gRPC interface. Survives the loss of
// members, and of all of them: calls then end in an error within seconds, watches go on where they
// were once etcd is back, and a session that ran out is followed by another.
#pragma once

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "appliance/cluster/store.h"

namespace pbox::cluster {

struct EtcdOptions {
  std::vector<std::string> endpoints = {};  // HOST:PORT of members, at least one
  std::string prefix = {};                  // of every key in etcd: "pbox/rack1/"
  uint32_t lease_ttl_s = 10;                // how long a session outlives a box that is gone
  std::string user = {};                    // empty: without
  std::string password = {};
  std::string ca = {};           // PEM of who signed the members' certificates; empty: no TLS
  std::string certificate = {};  // PEM of this box's own; empty: none
  std::string key = {};          // PEM of its private key
};

// `context` outlives the store. Does not wait for etcd; health() says whether it is there. Has one
// thread of its own beside gRPC's, which calls nothing.
std::unique_ptr<Store> make_etcd_store(boost::asio::io_context& context,
                                       const EtcdOptions& options);

}  // namespace pbox::cluster
