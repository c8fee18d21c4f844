// Maps each path to its answer: a function of a request, its sender's rights and the box's views,
// without a socket.
#pragma once

#include <string>
#include <string_view>

#include "appliance/admin/rights.h"
#include "appliance/admin/source.h"

namespace pbox::admin {

struct AdminRequest {
  std::string_view method;  // as sent: "GET"
  std::string_view target;  // as sent: "/api/v1/jobs/a%20b?pretty"; the query is ignored
  bool has_body = false;
  std::string_view content_type = {};  // POST only
  std::string_view body = {};          // POST only
};

struct AdminResponse {
  unsigned status = 200;
  std::string content_type;
  std::string body;  // set for HEAD too: the server sends its length, but not the body
};

// Answers a request. The body of an error is one line of text: the remedy, or the pages that exist.
// Control thread.
AdminResponse answer(AdminSource& source, const Principal& client, const AdminRequest& request);

// Separates the reason of a refusal from the list of pages.
inline constexpr std::string_view kPagesFollow = "; this server has ";

// Returns the answer to a request that failed: "<what>; this server has ...". The server also uses
// it for errors that precede a complete request.
AdminResponse refuse(unsigned status, std::string_view what);

}  // namespace pbox::admin
