#include "appliance/admin/web_origin.h"

#include <algorithm>

#include "nic/endpoint.h"

namespace pbox::admin {
namespace {

constexpr size_t kShownBytesMax = 100;  // longest part of a header that an answer shows

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

std::string lower_name(std::string_view name) {
  if (name.ends_with('.')) name.remove_suffix(1);
  std::string text(name);
  std::transform(text.begin(), text.end(), text.begin(), lower);
  return text;
}

// HOST, HOST:PORT, or the same with an IPv6 address in brackets.
struct Authority {
  std::string host;  // in lower case, without brackets
  std::string port;  // empty: none is stated

  bool operator==(const Authority&) const = default;
};

std::optional<Authority> read_authority(std::string_view text) {
  const bool is_bracketed = text.starts_with('[');
  const size_t end = is_bracketed ? text.find(']') : std::min(text.find(':'), text.size());
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view host = text.substr(is_bracketed ? 1 : 0, end - (is_bracketed ? 1 : 0));
  std::string_view rest = text.substr(end + (is_bracketed ? 1 : 0));
  if (host.empty()) return std::nullopt;
  if (!rest.empty()) {
    if (!rest.starts_with(':')) return std::nullopt;
    rest.remove_prefix(1);
    const bool is_number =
        std::all_of(rest.begin(), rest.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (rest.empty() || rest.size() > 5 || !is_number) return std::nullopt;
  }
  return Authority{lower_name(host), std::string(rest)};
}

std::string in_quotes(std::string_view text) {
  std::string safe = "'";
  safe += text.substr(0, kShownBytesMax);
  std::replace_if(
      safe.begin(), safe.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  safe += '\'';
  return safe;
}

// An origin is SCHEME://AUTHORITY. The port that the scheme implies may be left out on both sides.
bool is_own_origin(std::string_view origin, Authority own) {
  const bool is_tls = origin.starts_with("https://");
  if (!is_tls && !origin.starts_with("http://")) return false;
  auto authority = read_authority(origin.substr(origin.find("//") + 2));
  if (!authority) return false;
  const char* implied = is_tls ? "443" : "80";
  if (own.port.empty()) own.port = implied;
  if (authority->port.empty()) authority->port = implied;
  return *authority == own;
}

}  // namespace

OwnNames::OwnNames(const std::vector<std::string>& names) : names_{"localhost"} {
  for (const std::string& name : names) {
    if (!name.empty()) names_.push_back(lower_name(name));
  }
}

bool OwnNames::contains(std::string_view host) const {
  const std::string name = lower_name(host);
  return nic::parse_endpoint(name, 0) ||
         std::find(names_.begin(), names_.end(), name) != names_.end();
}

std::optional<OriginRefusal> check_origin(const OwnNames& names, const OriginHeaders& headers) {
  if (headers.host_count == 0 && headers.is_http_1_0) {
    if (!headers.origin) return std::nullopt;
    return OriginRefusal{403, "a request with Origin must have Host too"};
  }
  if (headers.host_count != 1) return OriginRefusal{400, "a request must have one header Host"};
  const auto own = read_authority(headers.host);
  if (!own || !names.contains(own->host)) {
    return OriginRefusal{421,
                         in_quotes(headers.host) +
                             " (header Host) is not a name of this box; use its IP address, or "
                             "list the name in [admin] hosts of the box"};
  }
  if (headers.origin && !is_own_origin(*headers.origin, *own)) {
    return OriginRefusal{403, "a page of " + in_quotes(*headers.origin) +
                                  " (header Origin) may not use this server; only its own page "
                                  "may"};
  }
  return std::nullopt;
}

}  // namespace pbox::admin
