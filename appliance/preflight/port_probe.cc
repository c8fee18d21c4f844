#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "appliance/preflight/preflight.h"

namespace pbox::preflight {
namespace {

union SocketAddress {
  sockaddr any;
  sockaddr_in v4;
  sockaddr_in6 v6;
};

// Fills the address and returns its length; 0 if the text is not an IP literal.
socklen_t fill(const std::string& text, uint16_t port, SocketAddress& address) {
  address = {};
  if (inet_pton(AF_INET, text.c_str(), &address.v4.sin_addr) == 1) {
    address.v4.sin_family = AF_INET;
    address.v4.sin_port = htons(port);
    return sizeof(address.v4);
  }
  address = {};
  if (inet_pton(AF_INET6, text.c_str(), &address.v6.sin6_addr) == 1) {
    address.v6.sin6_family = AF_INET6;
    address.v6.sin6_port = htons(port);
    return sizeof(address.v6);
  }
  return 0;
}

int try_bind(const PortProbe& probe) {
  SocketAddress address;
  const socklen_t length = fill(probe.address, probe.port, address);
  if (length == 0) return EINVAL;
  const int type = probe.is_udp ? SOCK_DGRAM : SOCK_STREAM;
  const int socket_fd = socket(address.any.sa_family, type | SOCK_CLOEXEC, 0);
  if (socket_fd < 0) return errno;
  // The servers set this too, so that connections of a box that has just stopped do not block the
  // port.
  const int on = 1;
  if (!probe.is_udp) setsockopt(socket_fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  int error_number = bind(socket_fd, &address.any, length) == 0 ? 0 : errno;
  // With SO_REUSEADDR, another listener shows only at listen().
  if (error_number == 0 && !probe.is_udp && listen(socket_fd, 1) != 0) error_number = errno;
  close(socket_fd);
  return error_number;
}

}  // namespace

std::vector<PortProbe> probe_ports(const config::Config& config, uint32_t pipeline_count) {
  std::vector<PortProbe> probes;
  const auto add = [&](const char* key, const std::string& address, uint32_t port, bool is_udp) {
    PortProbe probe{key, address, static_cast<uint16_t>(port), is_udp, 0};
    probe.error_number = try_bind(probe);
    probes.push_back(std::move(probe));
  };
  if (config.control.port != 0) {
    add("control.port", config.box.listen, config.control.port, false);
  }
  if (config.admin.enabled && config.admin.port != 0) {
    add("admin.port", config.admin.listen, config.admin.port, false);
  }
  const bool has_sockets = config.data.port != config::PortKind::kDpdk;
  for (uint32_t i = 0; i < pipeline_count && has_sockets && config.data.port_first != 0; ++i) {
    add("data.port_first", config.box.listen, config.data.port_first + i, true);
  }
  return probes;
}

}  // namespace pbox::preflight
