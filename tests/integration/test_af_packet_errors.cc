// A box with the DPDK port that cannot start prints one message with the remedy. It does not crash.
#include <catch2/catch.hpp>
#include <fstream>

#include "tests/support/veth.h"

namespace pbox::test {
namespace {

using Catch::Contains;

// Returns the arguments with another value for `key`: replaces "--KEY=...".
Arguments with(Arguments arguments, const std::string& key, const std::string& value) {
  std::erase_if(arguments, [&](const std::string& each) { return each.starts_with(key + "="); });
  arguments.push_back(key + "=" + value);
  return arguments;
}

// Waits for the end of a box that must not start, and returns its message.
std::string refusal(Program& program) {
  const auto status = program.wait_exit(kDeadlineMs);
  const std::string errors = program.errors();
  INFO(errors);
  REQUIRE(status);
  CHECK(*status > 0);
  CHECK(*status < 128);  // not killed by a signal
  const size_t start = errors.find("pboxd: cannot start");
  REQUIRE(start != std::string::npos);
  return errors.substr(start);
}

std::string refusal(const Arguments& arguments) {
  Program program(daemon_path(), daemon_arguments(arguments));
  return refusal(program);
}

}  // namespace

TEST_CASE("a missing interface is named, together with the interfaces that exist") {
  Veth veth;
  const std::string device = "net_af_packet0,iface=box7 10.77.0.1/24";
  CHECK_THAT(refusal(with(veth.box_arguments(1), "--dpdk.devices", device)),
             Contains("no interface box7") && Contains("box0"));
}

TEST_CASE("an interface that is down is named, with the command that brings it up") {
  Veth veth;
  must_run({"ip", "link", "set", Veth::kBoxInterface, "down"});
  CHECK_THAT(refusal(veth.box_arguments(1)),
             Contains("box0 is down") && Contains("ip link set dev box0 up"));
}

TEST_CASE("without the needed rights the error names the missing capabilities") {
  Veth veth;
  Arguments arguments = {"--reuid=65534", "--regid=65534", "--clear-groups", daemon_path()};
  for (const auto& each : daemon_arguments(veth.box_arguments(1))) arguments.push_back(each);
  Program program("setpriv", arguments);
  CHECK_THAT(refusal(program), Contains("CAP_NET_RAW") && Contains("pboxd-dpdk.conf"));
}

TEST_CASE(
    "without hugepages the error names the command that reserves them and the option to do "
    "without") {
  std::ifstream pages("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
  uint64_t free_pages = 0;
  pages >> free_pages;
  if (free_pages > 0) {
    WARN("skipped: this machine has free hugepages");
    return;
  }
  Veth veth;
  CHECK_THAT(refusal(with(veth.box_arguments(1), "--dpdk.no_huge", "false")),
             Contains("hugepages") && Contains("nr_hugepages") && Contains("dpdk.no_huge = true"));
}

TEST_CASE("a PCI address without a device is named") {
  Veth veth;
  const std::string device = "0000:fe:1f.7 10.77.0.1/24";
  CHECK_THAT(refusal(with(veth.box_arguments(1), "--dpdk.devices", device)),
             Contains("0000:fe:1f.7 is not a network device") && Contains("choose among"));
}

}  // namespace pbox::test
