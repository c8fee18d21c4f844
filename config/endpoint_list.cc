#include "config/endpoint_list.h"

#include <algorithm>
#include <sstream>

#include "config/address.h"
#include "config/value.h"

namespace pbox::config {
namespace {

bool is_host_name(const std::string& host) {
  return !host.empty() && std::all_of(host.begin(), host.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '.' || c == '_';
  });
}

// Returns the item's fault; empty if it has none.
std::string fault_of(const std::string& item) {
  if (item.find("://") != std::string::npos) {
    return "remove '" + item.substr(0, item.find("://") + 3) + "'; ca_file turns TLS on";
  }
  const size_t colon = item.rfind(':');
  const auto port = colon == std::string::npos ? std::nullopt : read_number(item.substr(colon + 1));
  if (!port || *port == 0 || *port > 65'535) {
    return "write HOST:PORT with a port from 1 to 65535, such as 10.0.0.1:2379";
  }
  const std::string host = item.substr(0, colon);
  const bool is_bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']' &&
                            is_address(host_of(item)) && host.find(':') != std::string::npos;
  if (is_bracketed || is_host_name(host)) return "";
  return "write a host name, an IPv4 address, or an IPv6 address in brackets before the port";
}

}  // namespace

EndpointsRead read_endpoints(const std::string& text) {
  EndpointsRead read;
  if (trim(text).empty()) return read;
  std::istringstream items(text + ",");
  for (std::string item; std::getline(items, item, ',');) {
    item = trim(item);
    const auto& known = read.endpoints;
    const std::string fault = std::find(known.begin(), known.end(), item) != known.end()
                                  ? "it is named twice; remove one"
                                  : fault_of(item);
    if (fault.empty()) {
      read.endpoints.push_back(item);
    } else {
      read.faults.push_back("'" + item + "': " + fault);
    }
  }
  return read;
}

std::string print_endpoints(const std::vector<std::string>& endpoints) {
  std::string text;
  for (const auto& endpoint : endpoints) text += (text.empty() ? "" : ", ") + endpoint;
  return text;
}

std::string host_of(const std::string& endpoint) {
  const std::string host = endpoint.substr(0, endpoint.rfind(':'));
  if (host.size() < 2 || host.front() != '[') return host;
  return host.substr(1, host.size() - 2);
}

}  // namespace pbox::config
