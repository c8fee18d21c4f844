// Opens a box's control port, and states how peers that do not speak TLS are answered there. Used
// on the control thread.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <string>

#include "appliance/control/handshakes.h"
#include "base/result.h"
#include "nic/endpoint.h"

namespace pbox::control {

// Opens `acceptor`, which must be closed, on the address and the port. Errors name the address, the
// port and the key of the configuration.
Status listen(boost::asio::ip::tcp::acceptor& acceptor, const std::string& address, uint16_t port);

// Returns options by which a peer without TLS is answered with a control message, which it can
// read.
HandshakeOptions handshake_options(const HandshakeLimits& limits);

nic::Endpoint to_endpoint(const boost::asio::ip::tcp::endpoint& peer);

}  // namespace pbox::control
