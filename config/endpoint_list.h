// HOST:PORT of servers, separated by commas: "10.0.0.1:2379, [fd00::1]:2379, etcd.rack:2379". Pure;
// any thread.
#pragma once

#include <string>
#include <vector>

namespace pbox::config {

struct EndpointsRead {
  std::vector<std::string> endpoints;  // each as it was written, without blanks
  std::vector<std::string> faults;     // each names the item and the remedy
};

EndpointsRead read_endpoints(const std::string& text);  // an empty text names none
std::string print_endpoints(const std::vector<std::string>& endpoints);

std::string host_of(const std::string& endpoint);  // "fd00::1" of "[fd00::1]:2379"

}  // namespace pbox::config
