#include <catch2/catch.hpp>

#include "config/parse.h"

namespace pbox::config::validate_test {
namespace {

// Returns the only error of a configuration; empty if there is none.
std::string only_error(const Config& config) {
  const auto errors = validate(config);
  if (errors.empty()) return {};
  CHECK(errors.size() == 1);
  return errors[0];
}

}  // namespace

TEST_CASE("the defaults are valid") {
  CHECK(only_error(Config{}).empty());
}

TEST_CASE("without keys a box off loopback needs both flags") {
  Config config;
  config.box.listen = "10.0.0.7";
  CHECK_THAT(only_error(config), Catch::Contains("box.listen = 10.0.0.7") &&
                                     Catch::Contains("security.insecure_off_loopback = true"));
  config.security.insecure = OnOffAuto::kOn;
  CHECK_FALSE(only_error(config).empty());
  config.security.insecure_off_loopback = true;
  CHECK(only_error(config).empty());
  config.security.insecure = OnOffAuto::kAuto;
  CHECK_FALSE(only_error(config).empty());
}

TEST_CASE("a box with keys may listen off loopback; its admin server has TLS then, or consent") {
  Config config;
  config.security.keys = "/etc/pbox/keys";
  CHECK(only_error(config).empty());
  config.box.listen = "10.0.0.7";
  CHECK(only_error(config).empty());
  config.security.insecure = OnOffAuto::kOff;
  CHECK(only_error(config).empty());
  config.admin.listen = "10.0.0.7";
  CHECK(only_error(config).empty());
  CHECK(admin_has_tls(config));
  config.admin.tls = OnOffAuto::kOff;
  CHECK_FALSE(admin_has_tls(config));
  CHECK_THAT(only_error(config),
             Catch::Contains("admin.listen = 10.0.0.7") && Catch::Contains("set admin.tls = auto"));
  config.security.insecure_off_loopback = true;
  CHECK(only_error(config).empty());
}

TEST_CASE(
    "the admin server has TLS off loopback, or where it is asked for, and never without keys") {
  Config config;
  CHECK_FALSE(admin_has_tls(config));
  config.admin.tls = OnOffAuto::kOn;
  CHECK_FALSE(admin_has_tls(config));
  CHECK_THAT(only_error(config), Catch::Contains("admin.tls = on needs keys"));
  config.security.keys = "/etc/pbox/keys";
  CHECK(only_error(config).empty());
  CHECK(admin_has_tls(config));
  config.admin.tls = OnOffAuto::kAuto;
  for (const char* loopback : {"127.0.0.1", "127.0.0.2", "::1"}) {
    config.admin.listen = loopback;
    CHECK_FALSE(admin_has_tls(config));
  }
  for (const char* open : {"0.0.0.0", "::", "10.0.0.7", "fd00::7"}) {
    config.admin.listen = open;
    CHECK(admin_has_tls(config));
  }
}

TEST_CASE("a box has keys or is insecure, not both, and not neither") {
  Config config;
  config.security.insecure = OnOffAuto::kOff;
  CHECK_THAT(only_error(config),
             Catch::Contains("security.keys is empty") && Catch::Contains("pboxctl keys box"));
  config.security.insecure = OnOffAuto::kOn;
  config.security.keys = "/etc/pbox/keys";
  CHECK_THAT(only_error(config), Catch::Contains("contradicts security.keys = /etc/pbox/keys"));
}

TEST_CASE("the admin server is held to the same rule, unless it is off") {
  Config config;
  config.admin.listen = "0.0.0.0";
  CHECK_THAT(only_error(config), Catch::Contains("admin.listen = 0.0.0.0"));
  config.admin.enabled = false;
  CHECK(only_error(config).empty());
}

TEST_CASE("secure mode is refused rather than pretended") {
  Config config;
  config.security.insecure = OnOffAuto::kOff;
  CHECK_THAT(only_error(config), Catch::Contains("security.insecure = false"));
}

TEST_CASE("two servers on one port are refused, two free ports are not") {
  Config config;
  config.admin.port = config.control.port;
  CHECK_THAT(only_error(config), Catch::Contains("admin.port = 9541"));
  config.admin.listen = "::1";
  CHECK(only_error(config).empty());
  config.admin.listen = "127.0.0.1";
  config.admin.port = config.control.port = 0;
  CHECK(only_error(config).empty());
}

TEST_CASE("the data ports of all pipelines must exist") {
  Config config;
  config.data.port_first = 65'535;
  CHECK_THAT(only_error(config), Catch::Contains("data.port_first = 65535"));
  config.pipeline.count = 1;
  CHECK(only_error(config).empty());
}

TEST_CASE("one lost heartbeat is not a death") {
  Config config;
  config.control.heartbeat_interval_ms = 5'001;
  CHECK_THAT(only_error(config), Catch::Contains("at least 10002"));
}

TEST_CASE("more pipelines than named cpus are refused") {
  Config config;
  config.pipeline.cores = {0, 1};
  config.pipeline.count = 3;
  CHECK_THAT(only_error(config), Catch::Contains("pipeline.count = 3"));
}

TEST_CASE("sizes that no packet or cache line fits are refused") {
  Config config;
  config.data.mtu = 576;
  CHECK_THAT(only_error(config), Catch::Contains("data.mtu = 576"));
  config.data.mtu = 1500;
  config.jobs.chunk_bytes = 1025;
  CHECK_THAT(only_error(config), Catch::Contains("give 1024"));
}

TEST_CASE("a value made in code is held to the bounds of its key") {
  Config config;
  config.jobs.max = 0;
  CHECK_THAT(only_error(config), Catch::Contains("jobs.max = 0"));
}

}  // namespace pbox::config::validate_test
