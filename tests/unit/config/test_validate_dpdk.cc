#include <catch2/catch.hpp>

#include "config/dpdk_device.h"
#include "config/parse.h"

namespace pbox::config::validate_dpdk_test {
namespace {

// Returns the only error of a configuration; empty if there is none.
std::string only_error(const Config& config) {
  const auto errors = validate(config);
  CHECK(errors.size() <= 1);
  return errors.empty() ? std::string() : errors[0];
}

Config with_devices(const std::string& text) {
  Config config;
  config.data.port = PortKind::kDpdk;
  config.dpdk.devices = read_dpdk_devices(text).devices;
  config.security = {"", OnOffAuto::kOn, true};
  return config;
}

}  // namespace

TEST_CASE("devices and data.port = dpdk need each other") {
  auto config = with_devices("0000:3b:00.0 10.0.0.1/24");
  CHECK(only_error(config).empty());
  config.data.port = PortKind::kSocket;
  CHECK_THAT(only_error(config), Catch::Contains("dpdk.devices = 0000:3b:00.0 10.0.0.1/24") &&
                                     Catch::Contains("set data.port = dpdk"));
  CHECK_THAT(only_error(with_devices("")),
             Catch::Contains("dpdk.devices is empty") && Catch::Contains("data.port = socket"));
}

TEST_CASE("a device is named once, whatever its arguments") {
  CHECK_THAT(only_error(with_devices("net_ring0 10.0.0.1/24; net_ring0,a=b 10.0.1.1/24")),
             Catch::Contains("net_ring0 twice"));
}

TEST_CASE("an address belongs to one group of devices") {
  CHECK(only_error(with_devices("net_memif0 10.0.0.1/24; net_memif1 10.0.0.1/24")).empty());
  CHECK_THAT(only_error(with_devices("net_memif0 10.0.0.1/24; net_memif1 10.0.0.1/25")),
             Catch::Contains("10.0.0.1 to net_memif0 and to net_memif1"));
  CHECK_THAT(only_error(with_devices("net_memif0 10.0.0.1/24; net_memif1 10.0.0.1/24 fd00::1/64")),
             Catch::Contains("10.0.0.1 to net_memif0 and to net_memif1"));
}

TEST_CASE("devices that reach a wire need both consents, and those within the host none") {
  auto config = with_devices("net_memif0 10.0.0.1/24; 0000:3b:00.0 10.0.1.1/24");
  for (const Security& security :
       {Security{}, Security{"", OnOffAuto::kOn, false}, Security{"", OnOffAuto::kAuto, true}}) {
    config.security = security;
    CHECK_THAT(only_error(config),
               Catch::Contains("dpdk.devices: 0000:3b:00.0 carry data off loopback") &&
                   Catch::Contains("security.insecure_off_loopback = true"));
  }
  config = with_devices("net_memif0 10.0.0.1/24; net_ring0 10.0.1.1/24; net_null0 10.0.2.1/24");
  config.security = {};
  CHECK(only_error(config).empty());
}

TEST_CASE("values that only a kernel can choose must be given") {
  auto config = with_devices("0000:3b:00.0 10.0.0.1/24");
  config.data.port_first = 0;
  CHECK_THAT(only_error(config), Catch::Contains("data.port_first = 0 with data.port = dpdk"));
}

TEST_CASE("an mtu that no frame of a NIC carries is refused with dpdk") {
  auto config = with_devices("0000:3b:00.0 10.0.0.1/24");
  config.data.mtu = kDpdkMtuMax;
  CHECK(only_error(config).empty());
  config.data.mtu = kDpdkMtuMax + 1;
  CHECK_THAT(only_error(config), Catch::Contains("data.mtu = 9217") && Catch::Contains("9216"));
}

TEST_CASE("no more devices than DPDK opens") {
  std::string text;
  for (uint32_t i = 0; i <= kDpdkDevicesMax; ++i) {
    text += (i == 0 ? "" : "; ") + ("net_memif" + std::to_string(i)) + " 10.0.0.1/24";
  }
  CHECK_THAT(only_error(with_devices(text)), Catch::Contains("33 devices"));
}

TEST_CASE("a key that was refused is not judged by its default as well") {
  const auto outcome = parse_text("[data]\nport = dpdk\nport_first = 0\n[dpdk]\ndevices = x\n");
  REQUIRE(outcome.errors.size() == 2);
  CHECK_THAT(outcome.errors[0], Catch::StartsWith("text: dpdk.devices: x is not a device"));
  CHECK_THAT(outcome.errors[1], Catch::StartsWith("data.port_first = 0"));
}

}  // namespace pbox::config::validate_dpdk_test
