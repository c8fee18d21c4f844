#include <catch2/catch.hpp>

#include "config/parse.h"

namespace pbox::config {
namespace {

using Catch::Contains;

// Returns the only error of a file whose [cluster] has this text; empty if there is none.
std::string error_of(const std::string& cluster) {
  const auto outcome = parse_text("[cluster]\n" + cluster);
  REQUIRE(outcome.errors.size() <= 1);
  return outcome.errors.empty() ? "" : outcome.errors[0];
}

const std::string kEtcd = "store = etcd\nendpoints = 127.0.0.1:2379\n";

}  // namespace

TEST_CASE("members of etcd are HOST:PORT, and what is wrong with one is said of that one") {
  CHECK(error_of(kEtcd) == "");
  const auto outcome =
      parse_text("[cluster]\nstore = etcd\nendpoints = localhost:1,[::1]:65535 , 127.0.0.1:2379\n");
  REQUIRE(outcome.config);
  CHECK(outcome.config->cluster.endpoints ==
        std::vector<std::string>{"localhost:1", "[::1]:65535", "127.0.0.1:2379"});
  const auto fault = [](const std::string& endpoints) {
    return error_of("store = etcd\nendpoints = " + endpoints + "\n");
  };
  CHECK_THAT(fault("127.0.0.1"), Contains("'127.0.0.1'") && Contains("HOST:PORT"));
  CHECK_THAT(fault("127.0.0.1:0"), Contains("port from 1 to 65535"));
  CHECK_THAT(fault("127.0.0.1:70000"), Contains("port from 1 to 65535"));
  CHECK_THAT(fault("http://127.0.0.1:2379"), Contains("http://") && Contains("ca_file"));
  CHECK_THAT(fault("::1:2379"), Contains("in brackets"));
  CHECK_THAT(fault("[box]:2379"), Contains("in brackets"));
  CHECK_THAT(fault("a b:2379"), Contains("host name"));
  CHECK_THAT(fault("localhost:1, localhost:1"), Contains("twice"));
  CHECK_THAT(fault(""), Contains("cluster.endpoints is empty"));
}

TEST_CASE("an upstream has a rank for this box, and is of a box that is alone") {
  const auto error = [](const std::string& upstream) {
    const auto outcome = parse_text(upstream);
    REQUIRE(outcome.errors.size() <= 1);
    return outcome.errors.empty() ? "" : outcome.errors[0];
  };
  const std::string box = "[upstream]\nbox = 10.0.0.9:9541\n";
  CHECK(error(box + "rank = 1\nworld_size = 2\nport = rdma:mlx5_0\n") == "");
  CHECK_THAT(error(box + "rank = 2\nworld_size = 2\n"),
             Contains("upstream.rank = 2") && Contains("upstream.world_size = 2"));
  CHECK_THAT(error("[upstream]\nbox = 10.0.0.9\n"),
             Contains("upstream.box") && Contains("HOST:PORT"));
  CHECK_THAT(error("[upstream]\nbox = 10.0.0.9:1,10.0.0.8:1\n"), Contains("upstream.box"));
  CHECK_THAT(error("[upstream]\nport = dpdk:net_memif0\n"), Contains("socket, or rdma:DEVICE"));
  CHECK_THAT(error(box + "[cluster]\n" + kEtcd), Contains("cluster.store = local"));
}

TEST_CASE("a box of a cluster listens where others can be told to find it") {
  for (const std::string wildcard : {"0.0.0.0", "::"}) {
    const auto outcome = parse_text("[box]\nlisten = " + wildcard +
                                    "\n[security]\ninsecure = true\ninsecure_off_loopback = true\n"
                                    "[cluster]\n" +
                                    kEtcd);
    REQUIRE(outcome.errors.size() == 1);
    CHECK_THAT(outcome.errors[0], Contains("box.listen = " + wildcard) && Contains("data network"));
  }
}

TEST_CASE("the keys of etcd say so when the store is local") {
  for (const std::string key :
       {"endpoints = 127.0.0.1:2379", "user = box\npassword_file = /p", "ca_file = /ca"}) {
    CAPTURE(key);
    CHECK_THAT(error_of(key + "\n"), Contains("only cluster.store = etcd") &&
                                         Contains("cluster." + key.substr(0, key.find(' '))));
  }
}

TEST_CASE("scaling needs a cluster, thresholds apart, and a hook that is called") {
  CHECK_THAT(error_of("scale = true\n"), Contains("cluster.scale = true") && Contains("etcd"));
  CHECK_THAT(error_of("standby = true\n"), Contains("cluster.standby = true"));
  CHECK(error_of(kEtcd + "scale = true\nscale_hook = /usr/local/bin/hook\n") == "");
  CHECK_THAT(error_of(kEtcd + "scale_hook = /usr/local/bin/hook\n"),
             Contains("cluster.scale = false never calls it"));
  CHECK_THAT(error_of(kEtcd + "scale_in_below = 80\n"),
             Contains("scale_in_below = 80") && Contains("scale_out_above = 80"));
  CHECK_THAT(error_of(kEtcd + "boxes_min = 0\n"), Contains("boxes_min"));
}

TEST_CASE("keys of etcd that need each other") {
  CHECK_THAT(error_of(kEtcd + "user = box\n"), Contains("cluster.password_file"));
  CHECK_THAT(error_of(kEtcd + "password_file = /p\n"), Contains("without cluster.user"));
  CHECK_THAT(error_of(kEtcd + "ca_file = /ca\ncert_file = /c\n"), Contains("cluster.key_file"));
  CHECK_THAT(error_of(kEtcd + "ca_file = /ca\nkey_file = /k\n"), Contains("cluster.cert_file"));
  CHECK_THAT(error_of(kEtcd + "cert_file = /c\nkey_file = /k\n"), Contains("cluster.ca_file"));
  CHECK(error_of(kEtcd + "ca_file = /ca\ncert_file = /c\nkey_file = /k\n") == "");
  CHECK_THAT(error_of(kEtcd + "ca_file = ca.pem\n"), Contains("an absolute path"));
  CHECK_THAT(error_of(kEtcd + "name =\n"), Contains("cluster.name"));
}

TEST_CASE("etcd off loopback needs TLS, or both consents") {
  const std::string far = "store = etcd\nendpoints = 127.0.0.1:2379, etcd.rack:2379\n";
  CHECK_THAT(error_of(far), Contains("etcd.rack:2379") && Contains("ca_file"));
  CHECK(error_of(far + "ca_file = /ca\n") == "");
  CHECK(error_of(far + "[security]\ninsecure = true\ninsecure_off_loopback = true\n") == "");
}

TEST_CASE("a box with keys logs in to an etcd off loopback") {
  const std::string far = "store = etcd\nendpoints = 127.0.0.1:2379, etcd.rack:2379\n";
  const std::string keys = "[security]\nkeys = /keys\n";
  CHECK_THAT(error_of(far + keys), Contains("etcd.rack:2379") && Contains("ca_file is empty"));
  CHECK_THAT(error_of(far + "ca_file = /ca\n" + keys),
             Contains("etcd.rack:2379") && Contains("does not log in") && Contains("cert_file"));
  CHECK(error_of(far + "ca_file = /ca\ncert_file = /c\nkey_file = /k\n" + keys) == "");
  CHECK(error_of(far + "ca_file = /ca\nuser = box\npassword_file = /p\n" + keys) == "");
  CHECK(error_of(far + "ca_file = /ca\n" + keys + "insecure_off_loopback = true\n") == "");
  CHECK(error_of("store = etcd\nendpoints = 127.0.0.1:2379\n" + keys) == "");
}

}  // namespace pbox::config
