// Opens the TCP port on which a box is asked. Control thread.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <string>

#include "base/result.h"

namespace pbox::control {

// `acceptor` is closed. Errors name the address, the port and the key of the configuration.
Status listen(boost::asio::ip::tcp::acceptor& acceptor, const std::string& address, uint16_t port);

}  // namespace pbox::control
