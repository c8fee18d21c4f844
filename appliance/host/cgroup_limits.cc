#include "appliance/host/cgroup_limits.h"

#include <fstream>
#include <sstream>

namespace pbox::host {
namespace {

// Returns the first number in the file; 0, which means no limit, for "max" or a missing file.
uint64_t first_number(const std::string& path) {
  std::ifstream file(path);
  int64_t number = 0;
  return file >> number && number > 0 ? static_cast<uint64_t>(number) : 0;
}

// Reads cpu.max of cgroup version 2: "QUOTA PERIOD" or "max PERIOD", in microseconds.
double cpus_of_v2(const std::string& path) {
  std::ifstream file(path);
  double quota_us = 0;
  double period_us = 0;
  return file >> quota_us >> period_us && period_us > 0 ? quota_us / period_us : 0;
}

double cpus_of_v1(const std::string& group) {
  const uint64_t quota_us = first_number(group + "/cpu.cfs_quota_us");  // -1: no limit
  const uint64_t period_us = first_number(group + "/cpu.cfs_period_us");
  return period_us == 0 ? 0 : static_cast<double>(quota_us) / static_cast<double>(period_us);
}

template <typename Number>
void lower(Number& least, Number limit) {
  if (limit > 0 && (least == 0 || limit < least)) least = limit;
}

// Calls visit(folder) for the group and for each of its ancestors, up to the mount point.
template <typename Visit>
void walk_up(const std::string& mount, std::string path, Visit visit) {
  while (!path.empty() && path != "/") {
    visit(mount + path);
    path.erase(path.rfind('/'));
  }
  visit(mount);
}

bool names_controller(const std::string& list, const std::string& controller) {
  return ("," + list + ",").find("," + controller + ",") != std::string::npos;
}

}  // namespace

CgroupLimits read_cgroup_limits(const std::string& self, const std::string& root) {
  CgroupLimits limits;
  std::istringstream lines(self);
  for (std::string line; std::getline(lines, line);) {
    // "ID:CONTROLLERS:PATH"; version 2 has id 0 and no controllers.
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (path.empty() || path[0] != '/') continue;
    if (controllers.empty()) {
      walk_up(root, path, [&](const std::string& group) {
        lower(limits.memory_bytes, first_number(group + "/memory.max"));
        lower(limits.cpus, cpus_of_v2(group + "/cpu.max"));
      });
    }
    if (names_controller(controllers, "memory")) {
      walk_up(root + "/memory", path, [&](const std::string& group) {
        lower(limits.memory_bytes, first_number(group + "/memory.limit_in_bytes"));
      });
    }
    if (names_controller(controllers, "cpu")) {
      walk_up(root + "/cpu", path,
              [&](const std::string& group) { lower(limits.cpus, cpus_of_v1(group)); });
    }
  }
  return limits;
}

}  // namespace pbox::host
