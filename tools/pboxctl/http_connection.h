// One request to a box's admin server, over TCP or a UNIX socket, with or without TLS.
#pragma once

#include <string>

#include "base/result.h"

namespace pboxctl {

struct HttpServer {
  std::string where;      // HOST:PORT, or unix:PATH
  std::string keys = {};  // folder of keys; empty: no TLS. Unused with a UNIX socket
};

struct HttpAnswer {
  unsigned status = 0;
  std::string body;
};

// Sends `request`, a complete HTTP request that asks the server to close the connection, and
// returns the answer. Blocks for at most five seconds once the server's name is resolved. Errors
// name what failed, and the remedy.
pbox::Result<HttpAnswer> send_request(const HttpServer& server, const std::string& request);

}  // namespace pboxctl
