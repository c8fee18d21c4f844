#include "tests/support/cable.h"

#include <unistd.h>

namespace pbox::test {
namespace {

bool bring_up(const std::string& name_space, const std::string& link, const std::string& address) {
  return run_tool({"ip", "-n", name_space, "addr", "add", address, "dev", link}) &&
         run_tool({"ip", "-n", name_space, "link", "set", link, "up"}) &&
         run_tool({"ip", "-n", name_space, "link", "set", "lo", "up"});
}

}  // namespace

Cable::Cable(int box_mtu, int rack_mtu) {
  const std::string id = std::to_string(getpid());
  box_ = "pbox-box-" + id;
  rack_ = "pbox-rack-" + id;
  const std::string left = "pl" + id, right = "pr" + id;
  works_ =
      run_tool({"ip", "netns", "add", box_}) && run_tool({"ip", "netns", "add", rack_}) &&
      run_tool({"ip", "link", "add", left, "mtu", std::to_string(box_mtu), "netns", box_, "type",
                "veth", "peer", "name", right, "mtu", std::to_string(rack_mtu), "netns", rack_}) &&
      bring_up(box_, left, std::string(kBoxAddress) + "/24") &&
      bring_up(rack_, right, "10.77.0.2/24");
}

Cable::~Cable() {
  run_tool({"ip", "netns", "del", box_});
  run_tool({"ip", "netns", "del", rack_});
}

// Only routing rules can match ports. This blackhole rule comes before the table of the host's own
// addresses.
bool Cable::block_udp(uint16_t port) const {
  const std::string number = std::to_string(port);
  return run_tool({"ip", "-n", box_, "rule", "add", "pref", "1", "lookup", "local"}) &&
         run_tool({"ip", "-n", box_, "rule", "del", "pref", "0"}) &&
         run_tool({"ip", "-n", box_, "rule", "add", "pref", "0", "ipproto", "udp", "dport", number,
                   "blackhole"});
}

Arguments Cable::box_arguments() {
  return {std::string("--box.listen=") + kBoxAddress, "--admin.enabled=false",
          "--security.insecure=true", "--security.insecure_off_loopback=true"};
}

}  // namespace pbox::test
