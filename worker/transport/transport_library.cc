#include "worker/transport/transport_library.h"

#include <algorithm>
#include <array>

#include "base/version.h"
#include "worker/transport/shm_transport.h"
#include "worker/transport/socket_transport.h"

namespace pbox::worker {
namespace {

bool is_kind(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char letter) {
    return (letter >= 'a' && letter <= 'z') || (letter >= '0' && letter <= '9') || letter == '_';
  });
}

}  // namespace

std::vector<std::string> split_list(const std::string& list, char separator) {
  std::vector<std::string> entries;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(separator, begin), list.size());
    entries.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return entries;
}

std::vector<std::string> ports_of(const std::string& list) {
  std::vector<std::string> ports = split_list(list, '|');
  if (ports.back() == kAutoPort) ports.emplace_back(kSocketPort);
  return ports;
}

Result<std::unique_ptr<Transport>> open_transport(const std::string& port) {
  if (port == kSocketPort) return std::unique_ptr<Transport>(std::make_unique<SocketTransport>());
  if (port == kShmPort || port == kAutoPort) {
    return std::unique_ptr<Transport>(std::make_unique<ShmTransport>());
  }
  const size_t colon = port.find(':');
  const std::string kind = port.substr(0, colon);
  if (colon == std::string::npos || !is_kind(kind)) {
    return Error{
        ErrorCode::kInvalidArgument,
        "port '" + port +
            "' is unknown; write 'auto', 'socket', 'shm' or KIND:ARGUMENTS, as in 'dpdk:DEVICE'"};
  }
  const auto function = load_function(kind, kTransportFactoryName);
  if (!function) {
    const bool is_absent = function.error().code == ErrorCode::kNotFound;
    return Error{function.error().code, "port '" + port + "': " + function.error().message +
                                            (is_absent ? ", or choose the port 'socket'" : "")};
  }
  auto* factory = reinterpret_cast<TransportFactory*>(*function);
  const std::string arguments = port.substr(colon + 1);
  std::array<char, kFactoryErrorBytes> error{};
  std::unique_ptr<Transport> transport(
      factory({.version = kVersion, .arguments = arguments.c_str()}, error.data(), error.size()));
  if (transport == nullptr) {
    return Error{ErrorCode::kUnavailable,
                 "port '" + port + "': libpbox_" + kind + ".so.1 refused: " + error.data()};
  }
  return transport;
}

}  // namespace pbox::worker
