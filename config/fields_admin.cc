#include "config/fields_admin.h"

#include <sys/un.h>

#include <sstream>

#include "config/address.h"
#include "config/field_makers.h"

namespace pbox::config {
namespace {

constexpr size_t kSocketPathMax = sizeof(sockaddr_un::sun_path) - 1;
constexpr size_t kHostBytesMax = 253;  // longest DNS name

// Returns nullopt if an item is not a host name.
std::optional<std::vector<std::string>> read_hosts(const std::string& text) {
  std::vector<std::string> hosts;
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');) {
    const std::string host = trim(item);
    const bool is_name = std::all_of(host.begin(), host.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
             c == '-' || c == '_' || c == '.';
    });
    if (host.empty() || host.size() > kHostBytesMax || !is_name) return std::nullopt;
    hosts.push_back(host);
  }
  return hosts;
}

Field admin_hosts() {
  return Field{"admin.hosts",
               "additional names by which clients reach the HTTP server",
               "names of hosts separated by ',', such as box1.example.com, metrics",
               false,
               [](const Config& config) {
                 std::string text;
                 for (const auto& host : config.admin.hosts) {
                   text += (text.empty() ? "" : ", ") + host;
                 }
                 return text;
               },
               [](Config& config, const std::string& text) {
                 auto hosts = read_hosts(text);
                 if (!hosts) return false;
                 config.admin.hosts = std::move(*hosts);
                 return true;
               }};
}

Field admin_socket() {
  return Field{
      "admin.socket",
      "UNIX socket of the HTTP server, for local operators; empty: none",
      "an absolute path of at most " + std::to_string(kSocketPathMax) + " characters, or nothing",
      false,
      [](const Config& config) { return config.admin.socket; },
      [](Config& config, const std::string& text) {
        const bool is_path = text.starts_with('/') && !text.ends_with('/');
        if (!is_plain(text) || text.size() > kSocketPathMax) return false;
        if (!text.empty() && !is_path) return false;
        config.admin.socket = text;
        return true;
      }};
}

}  // namespace

void add_admin(std::vector<Field>& list) {
  list.push_back(boolean("admin.enabled", PBOX_MEMBER(admin, enabled),
                         "serve metrics, health and the JSON API over HTTP"));
  list.push_back(address("admin.listen", PBOX_MEMBER(admin, listen), "address of the HTTP server"));
  list.push_back(number("admin.port", PBOX_MEMBER(admin, port), 0, kPortMax, Reload::kNo,
                        "TCP port of the HTTP server; 0: any free port"));
  list.push_back(admin_hosts());
  list.push_back(admin_socket());
  list.push_back(
      choice("admin.tls", PBOX_MEMBER(admin, tls),
             {{"auto", OnOffAuto::kAuto}, {"on", OnOffAuto::kOn}, {"off", OnOffAuto::kOff}}, 3,
             Reload::kNo, "TLS of the HTTP server over TCP; auto: on with keys and off loopback"));
}

bool admin_has_tls(const Config& config) {
  if (config.security.keys.empty() || config.admin.tls == OnOffAuto::kOff) return false;
  return config.admin.tls == OnOffAuto::kOn || !is_loopback_address(config.admin.listen);
}

}  // namespace pbox::config
