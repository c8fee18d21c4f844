#include "config/validate_rdma.h"

#include <set>

namespace pbox::config {

void check_rdma(const Config& config, std::vector<std::string>& errors) {
  const Rdma& rdma = config.rdma;
  if (config.data.port != PortKind::kRdma && rdma != Rdma{}) {
    errors.push_back(
        "[rdma] is given, but data.port is not rdma, and no other port uses it; set data.port = "
        "rdma, or remove [rdma]");
  }
  std::set<std::string> names;
  for (const auto& name : rdma.devices) {
    if (names.insert(name).second) continue;
    errors.push_back("rdma.devices names " + name + " twice; name it once");
  }
}

void check_rdma_is_allowed(const Config& config, std::vector<std::string>& errors) {
  if (config.data.port != PortKind::kRdma) return;
  errors.push_back(
      "data.port = rdma carries data off loopback and no keys are configured: anyone there could "
      "read and change gradients; give keys (security.keys), or on a network you trust set both "
      "security.insecure = true and security.insecure_off_loopback = true");
}

}  // namespace pbox::config
