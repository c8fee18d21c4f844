#include <catch2/catch.hpp>

#include "config/fields.h"
#include "config/parse.h"

namespace pbox::config {
namespace {

using Catch::Contains;

Config allowed() {
  Config config;
  config.data.port = PortKind::kRdma;
  config.security.insecure = OnOffAuto::kOn;
  config.security.insecure_off_loopback = true;
  return config;
}

std::string errors_of(const Config& config) {
  std::string all;
  for (const auto& error : validate(config)) all += error + "\n";
  return all;
}

bool set(Config& config, const std::string& key, const std::string& text) {
  for (const auto& field : fields()) {
    if (field.key == key) return field.set(config, text);
  }
  return false;
}

}  // namespace

TEST_CASE("RDMA devices are read as names, and printed as they were read") {
  Config config = allowed();
  CHECK(errors_of(config) == "");
  REQUIRE(set(config, "rdma.devices", "  mlx5_0 rxe-1.2 "));
  CHECK(config.rdma.devices == std::vector<std::string>{"mlx5_0", "rxe-1.2"});
  CHECK(errors_of(config) == "");
  CHECK(!set(config, "rdma.devices", "mlx5/0"));
  CHECK(!set(config, "rdma.devices", std::string(64, 'a')));
  CHECK(set(config, "rdma.devices", ""));
  CHECK(config.rdma.devices.empty());
}

TEST_CASE("a GID index is auto or a small number") {
  Config config = allowed();
  CHECK(set(config, "rdma.gid_index", "255"));
  CHECK(config.rdma.gid_index == 255);
  for (const char* text : {"256", "-1", "x", ""}) CHECK(!set(config, "rdma.gid_index", text));
  CHECK(config.rdma.gid_index == 255);
  CHECK(set(config, "rdma.gid_index", "auto"));
  CHECK(config.rdma.gid_index == kGidIndexAuto);
}

TEST_CASE("workers' packets over RDMA are sent, or written with an immediate") {
  Config config = allowed();
  CHECK(config.rdma.mode == RdmaMode::kSend);
  CHECK(set(config, "rdma.mode", "write_imm"));
  CHECK(config.rdma.mode == RdmaMode::kWriteImm);
  for (const char* text : {"write", "", "SEND"}) CHECK(!set(config, "rdma.mode", text));
  CHECK(config.rdma.mode == RdmaMode::kWriteImm);
  CHECK(set(config, "rdma.mode", "send"));
  CHECK(config.rdma.mode == RdmaMode::kSend);
}

TEST_CASE("RDMA carries data off the host, which the operator must have allowed") {
  Config config = allowed();
  config.security = {};
  CHECK_THAT(errors_of(config), Contains("data.port = rdma carries data off loopback"));
}

TEST_CASE("RDMA settings that nobody uses, and a device named twice, are errors") {
  Config config = allowed();
  config.rdma.devices = {"rxe0", "rxe1", "rxe0"};
  CHECK_THAT(errors_of(config), Contains("rdma.devices names rxe0 twice"));
  config = {};
  config.rdma.gid_index = 3;
  CHECK_THAT(errors_of(config), Contains("[rdma] is given, but data.port is not rdma"));
  config = {};
  config.rdma.mode = RdmaMode::kWriteImm;
  CHECK_THAT(errors_of(config), Contains("[rdma] is given, but data.port is not rdma"));
}

}  // namespace pbox::config
