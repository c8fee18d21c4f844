#include <catch2/catch.hpp>
#include <cstdio>
#include <fstream>

#include "config/fields.h"
#include "config/parse.h"

namespace pbox::config::parse_test {
namespace {

ParseOutcome parse_flags(std::vector<const char*> flags) {
  flags.insert(flags.begin(), "pboxd");
  return parse(static_cast<int>(flags.size()), flags.data());
}

bool mentions(const std::vector<std::string>& errors, const std::vector<std::string>& words) {
  for (const auto& error : errors) {
    bool has_all = true;
    for (const auto& word : words) has_all = has_all && error.find(word) != std::string::npos;
    if (has_all) return true;
  }
  return false;
}

Config defaults() {
  const auto outcome = parse_text("");
  REQUIRE(outcome.config);
  return *outcome.config;
}

// Returns a valid configuration in which every key, except for those of [rdma] and [upstream],
// differs from its default.
Config unlike_defaults() {
  Config config;
  config.box = {"box-7", "10.0.0.7"};
  config.control = {1, 2, 30, 400, 5'000, 6};
  config.cluster = {"/srv/pbox 7",
                    StoreKind::kEtcd,
                    {"10.0.0.1:2379", "[fd00::1]:2379"},
                    "rack-7",
                    30,
                    false,
                    250,
                    true,
                    true,
                    "/usr/local/bin/scale",
                    70,
                    40,
                    30,
                    2,
                    "box",
                    "/etc/pbox/password",
                    "/etc/pbox/ca.pem",
                    "/etc/pbox/box.pem",
                    "/etc/pbox/box.key"};
  config.admin = {false,         "::1", 0, {"box7.example.com", "metrics"}, "/run/pbox/admin.sock",
                  OnOffAuto::kOn};
  config.data = {20'000, PortKind::kDpdk, 1u << 20, 2u << 20, 9'000, true, OnOffAuto::kOff, false};
  config.dpdk = {{{"0000:3b:00.0", {"10.0.0.1/24", "fd00::1/64"}, {"10.0.0.254"}, 7},
                  {"net_memif0,role=server", {"10.0.1.1/24"}, {}, 0}},
                 true,
                 512};
  config.pipeline = {3,      {2, 3, 4, 8}, PollMode::kBusy, 7, OnOffAuto::kOn, OnOffAuto::kOff,
                     12'345, false};
  config.recorder = {"/dev/shm/pbox", 8'192, 500};
  config.snapshots = {"/mnt/snapshots", 600};
  config.memory = {0.3, OnOffAuto::kOff};
  config.jobs = {1, 2, 3, 65'536, {{"acme", 3, 10, 4096, 640, 80}, {"*", 1, 2, 0, 0, 0}}};
  config.security = {"/etc/pbox/keys", OnOffAuto::kOff, true, true, 5'000};
  config.log = {LogLevel::kError, LogFormat::kJson, "/var/log/pbox/audit.log"};
  return config;
}

// Returns such a configuration for the settings that [dpdk] and [cluster] exclude.
Config unlike_defaults_otherwise() {
  Config config = unlike_defaults();
  config.data.port = PortKind::kRdma;
  config.dpdk = {};
  config.rdma = {{"mlx5_0", "mlx5_1"}, 3, RdmaMode::kWriteImm};
  config.cluster = {};
  config.upstream = {"10.0.0.9:9541", 2, 4, "rdma:mlx5_0"};
  return config;
}

}  // namespace

TEST_CASE("an empty file gives the defaults and the host name") {
  Config expected;
  expected.box.name = defaults().box.name;
  CHECK_FALSE(expected.box.name.empty());
  CHECK(defaults() == expected);
}

TEST_CASE("printed text parses back to the same configuration") {
  for (const Config& config : {unlike_defaults(), unlike_defaults_otherwise()}) {
    const auto outcome = parse_text(print(config));
    CHECK(outcome.errors == std::vector<std::string>{});
    REQUIRE(outcome.config);
    CHECK(*outcome.config == config);
    for (const auto& field : fields()) {
      const bool is_first = config.data.port == PortKind::kDpdk;
      if (field.key.starts_with(is_first ? "rdma." : "dpdk.")) continue;
      if (field.key.starts_with(is_first ? "upstream." : "cluster.")) continue;
      CAPTURE(field.key);
      CHECK(field.print(config) != field.print(Config{}));
    }
  }
}

TEST_CASE("every error is listed at once, each with key, value and remedy") {
  const auto outcome = parse_text(
      "[control]\nport = 70000\nprot = 1\nnonsense\n[data]\nport = verbs\n[memory]\n"
      "job_share = 2\n[pipeline]\npoll = lazy\ncores = 1,1\n[log]\nlevel = loud\n");
  CHECK_FALSE(outcome.config);
  CHECK(outcome.errors.size() == 8);
  CHECK(mentions(outcome.errors, {"control.port", "70000", "0 to 65535"}));
  CHECK(mentions(outcome.errors, {"control.prot", "did you mean control.port?"}));
  CHECK(mentions(outcome.errors, {"line 4", "nonsense"}));
  CHECK(mentions(outcome.errors, {"data.port", "verbs", "one of socket, dpdk, rdma"}));
  CHECK(mentions(outcome.errors, {"memory.job_share", "2", "0.01 to 0.98"}));
  CHECK(mentions(outcome.errors, {"pipeline.poll", "lazy", "adaptive, busy"}));
  CHECK(mentions(outcome.errors, {"pipeline.cores", "1,1"}));
  CHECK(mentions(outcome.errors, {"log.level", "loud", "debug, info, warn, error"}));
}

TEST_CASE("a key in the wrong section, given twice, or unlike any is an error") {
  const auto outcome =
      parse_text("port_first = 1\n[box]\nlisten = ::1\nlisten = 127.0.0.1\n[weather]\nsun = 1\n");
  CHECK(mentions(outcome.errors, {"port_first", "did you mean data.port_first?"}));
  CHECK(mentions(outcome.errors, {"box.listen", "127.0.0.1", "twice"}));
  CHECK(mentions(outcome.errors, {"weather.sun", "--help"}));
  CHECK(outcome.errors.size() == 3);
}

TEST_CASE("a flag wins over the file") {
  const std::string path = "flag_wins_test.conf";
  std::ofstream(path) << "[jobs]\nmax = 3\nworkers_max = 5\n";
  const auto outcome = parse_flags({"--config", path.c_str(), "--jobs.max=4"});
  std::remove(path.c_str());
  CHECK(outcome.errors == std::vector<std::string>{});
  CHECK(outcome.file == path);
  REQUIRE(outcome.config);
  CHECK(outcome.config->jobs.max == 4);
  CHECK(outcome.config->jobs.workers_max == 5);
}

TEST_CASE("a file that was named must be readable") {
  CHECK(mentions(parse_flags({"--config", "no_such.conf"}).errors, {"no_such.conf", "No such"}));
  CHECK(mentions(parse_flags({"--config=/"}).errors, {"config = /", "directory"}));
  CHECK(mentions(parse_flags({"--config="}).errors, {"config"}));
  CHECK(mentions(parse_flags({"--config"}).errors, {"config"}));
}

TEST_CASE("flags are taken by their whole names only") {
  CHECK(mentions(parse_flags({"--jobs.ma=4"}).errors, {"jobs.ma", "did you mean jobs.max?"}));
  CHECK(mentions(parse_flags({"run"}).errors, {"unexpected argument run"}));
  CHECK(parse_flags({"--jobs.max", "4"}).config->jobs.max == 4);
}

TEST_CASE("the action is what the flags ask for") {
  CHECK(parse_flags({}).action == Action::kRun);
  CHECK(parse_flags({"--help"}).action == Action::kHelp);
  CHECK(parse_flags({"-h"}).action == Action::kHelp);
  CHECK(parse_flags({"--version"}).action == Action::kVersion);
  CHECK(parse_flags({"--check-config"}).action == Action::kCheck);
  CHECK(parse_flags({"--print-config"}).action == Action::kPrint);
  CHECK_FALSE(parse_flags({"--help"}).config);
}

TEST_CASE("usage names every key and every option") {
  const std::string text = usage("pboxd");
  for (const auto& field : fields()) CHECK(text.find("--" + field.key) != std::string::npos);
  for (const char* option :
       {"--config", "--check-config", "--print-config", "--help", "--version"}) {
    CHECK(text.find(option) != std::string::npos);
  }
}

}  // namespace pbox::config::parse_test
