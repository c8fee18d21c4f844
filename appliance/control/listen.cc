#include "appliance/control/listen.h"

#include <cstring>
#include <utility>

#include "base/check.h"
#include "nic/socket/address.h"
#include "nic/wire/control_frame.h"

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

HandshakeOptions handshake_options(const HandshakeLimits& limits) {
  proto::BoxMessage message;
  message.mutable_failure()->set_code(static_cast<uint32_t>(ErrorCode::kInvalidArgument));
  message.mutable_failure()->set_message(
      "this box accepts TLS connections only; set PBOX_KEYS to keys of its cluster "
      "(`pboxctl keys`)");
  auto framed = wire::frame(message);
  PBOX_CHECK(framed.ok());
  return {.limits = limits,
          .plain_text_answer = std::move(*framed),
          .plain_text_remedy =
              "give it keys (`pboxctl keys`; PBOX_KEYS for workers, [security] keys for boxes)"};
}

nic::Endpoint to_endpoint(const tcp::endpoint& peer) {
  sockaddr_storage address{};
  PBOX_CHECK(peer.size() <= sizeof(address));
  std::memcpy(&address, peer.data(), peer.size());
  return nic::from_sockaddr(address);
}

}  // namespace pbox::control
