// Which path answers what: a function of a request and the box's views, without a socket.
#pragma once

#include <string>
#include <string_view>

#include "appliance/admin/source.h"

namespace pbox::appliance {

struct AdminRequest {
  std::string_view method;  // as sent: "GET"
  std::string_view target;  // as sent: "/api/v1/jobs/a%20b?pretty"; the query is ignored
  bool has_body = false;
  std::string_view content_type = {};  // of a POST
  std::string_view body = {};          // of a POST
};

struct AdminResponse {
  unsigned status = 200;
  std::string content_type;
  std::string body;  // for HEAD too: the server leaves it out and keeps its length
};

// Everything but 200 is one line of text that says what exists. Control thread.
AdminResponse answer(AdminSource& source, const AdminRequest& request);

// The same line for what fails before there is a request: "<what>; this server has ...".
AdminResponse refuse(unsigned status, std::string_view what);

}  // namespace pbox::appliance
