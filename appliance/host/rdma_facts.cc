#include "appliance/host/rdma_facts.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "appliance/host/sysfs.h"

namespace pbox::host {
namespace {

namespace files = std::filesystem;

int node_of(const files::path& device, const std::string& interface, const std::vector<Nic>& nics) {
  std::ifstream file(device / "device/numa_node");
  int node = kUnknownNode;
  if (file >> node && node >= 0) return node;
  const auto nic = std::find_if(nics.begin(), nics.end(),
                                [&](const Nic& each) { return each.name == interface; });
  return nic == nics.end() ? kUnknownNode : nic->node;
}

bool may_open(const std::string& root, const std::string& name) {
  const files::path verbs = root + "/sys/class/infiniband_verbs";
  for (const auto& entry : names_in(verbs)) {
    if (word_in(verbs / entry / "ibdev") != name) continue;
    return access((root + "/dev/infiniband/" + entry).c_str(), R_OK | W_OK) == 0;
  }
  return false;
}

}  // namespace

std::vector<RdmaFacts> read_rdma(const std::string& root, const std::vector<Nic>& nics) {
  const files::path devices = root + "/sys/class/infiniband";
  std::vector<RdmaFacts> found;
  for (const auto& name : names_in(devices)) {
    const files::path port = devices / name / "ports/1";
    RdmaFacts device;
    device.name = name;
    device.interface = word_in(port / "gid_attrs/ndevs/0");
    device.node = node_of(devices / name, device.interface, nics);
    device.is_active = word_in(port / "state") == "4:";  // "4: ACTIVE"
    device.is_accessible = may_open(root, name);
    found.push_back(std::move(device));
  }
  return found;
}

}  // namespace pbox::host
