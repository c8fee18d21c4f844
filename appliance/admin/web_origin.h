// Refuses requests that a web page of another origin makes a browser send to this box. Pure.
//
// Such a page can make its own name stand for the box's address (DNS rebinding). The browser then
// takes the box for the page's origin, but sends the page's name as Host. Requests with a name that
// is not the box's are refused. A page of another origin that names the box properly is stopped by
// the header Origin. Clients other than browsers may leave both headers out.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pbox::admin {

// The names by which clients may address the server, besides IP addresses and localhost.
class OwnNames {
 public:
  explicit OwnNames(const std::vector<std::string>& names);
  // `host`: without a port; an IPv6 address without brackets. Case and a final dot do not matter.
  bool contains(std::string_view host) const;

 private:
  std::vector<std::string> names_;  // in lower case
};

// The headers of a request as they were sent.
struct OriginHeaders {
  bool is_http_1_0 = false;
  size_t host_count = 1;       // fields named Host
  std::string_view host = {};  // the first one
  std::optional<std::string_view> origin = {};
};

struct OriginRefusal {
  unsigned status;
  std::string why;
};

// Returns nullopt if the request may go on. A request of HTTP/1.0 needs no Host, because browsers
// do not use HTTP/1.0.
std::optional<OriginRefusal> check_origin(const OwnNames& names, const OriginHeaders& headers);

}  // namespace pbox::admin
