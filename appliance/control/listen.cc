#include "appliance/control/listen.h"

#include "base/check.h"

namespace pbox::control {

using boost::asio::ip::tcp;

Status listen(tcp::acceptor& acceptor, const std::string& address, uint16_t port) {
  PBOX_CHECK(!acceptor.is_open());
  boost::system::error_code error;
  const auto parsed = boost::asio::ip::make_address(address, error);
  const std::string where =
      "cannot listen on TCP " + address + " port " + std::to_string(port) + " ([control] port): ";
  if (error) return Error{ErrorCode::kInvalidArgument, where + error.message()};
  const tcp::endpoint endpoint(parsed, port);
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(boost::asio::socket_base::max_listen_connections, error);
  if (error) {
    return Error{ErrorCode::kSystem, where + error.message() + "; is another pboxd running?"};
  }
  return ok_status();
}

}  // namespace pbox::control
