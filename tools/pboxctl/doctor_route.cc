#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>

#include "base/clock.h"
#include "nic/socket/address.h"
#include "tools/pboxctl/doctor_checks.h"

namespace pboxctl {
namespace {

using pbox::nic::Endpoint;

constexpr uint32_t kResolveTimeoutMs = 5'000;
constexpr uint32_t kConnectTimeoutMs = 3'000;
constexpr int kSliceMs = 100;  // longest delay before a signal takes effect
constexpr size_t kAddressesMax = 4;

struct Resolution {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  int error = 0;
  std::vector<Endpoint> addresses;
};

void resolve(Resolution& resolution, const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  const std::lock_guard lock(resolution.mutex);
  resolution.error = error;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    sockaddr_storage address{};
    std::memcpy(&address, entry->ai_addr, entry->ai_addrlen);
    resolution.addresses.push_back(pbox::nic::from_sockaddr(address));
  }
  if (found != nullptr) freeaddrinfo(found);
  resolution.done = true;
  resolution.changed.notify_all();
}

std::string list(const std::vector<Endpoint>& addresses) {
  std::string text;
  for (const Endpoint& each : addresses) {
    text += (text.empty() ? "" : ", ") + pbox::nic::address_string(each);
  }
  return text;
}

// The resolver has no deadline, so it runs in a detached thread, which may outlive this call.
std::vector<Endpoint> check_name(const BoxPath& path, Report& report) {
  const auto resolution = std::make_shared<Resolution>();
  std::thread([resolution, host = path.host, port = path.port] {
    resolve(*resolution, host, port);
  }).detach();
  std::unique_lock lock(resolution->mutex);
  for (uint32_t waited_ms = 0;
       !resolution->done && waited_ms < kResolveTimeoutMs && !stop_requested;
       waited_ms += kSliceMs) {
    if (waited_ms == 1'000) report.progress("still resolving " + path.host);
    resolution->changed.wait_for(lock, std::chrono::milliseconds(kSliceMs));
  }
  if (!resolution->done) {
    report.fail("name", "the resolver gave no answer for '" + path.host + "' within 5 s",
                "name the box by its address, or check the DNS server in /etc/resolv.conf");
    return {};
  }
  auto& addresses = resolution->addresses;
  if (addresses.empty()) {
    report.fail("name", "'" + path.host + "' does not resolve: " + gai_strerror(resolution->error),
                "check the spelling (getent hosts " + path.host +
                    "), or name the box by its "
                    "address");
    return {};
  }
  if (addresses.size() > kAddressesMax) addresses.resize(kAddressesMax);
  const std::string found = list(addresses);
  report.ok("name", found == path.host ? found : path.host + " is " + found);
  return addresses;
}

// Connects to `address`. Returns 0 on success, and stores the interface in `path`; otherwise
// returns errno.
int try_connect(const Endpoint& address, BoxPath& path, Report& report) {
  sockaddr_storage storage{};
  socklen_t length = pbox::nic::to_sockaddr(address, storage);
  const int fd = socket(storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno;
  int error = connect(fd, reinterpret_cast<sockaddr*>(&storage), length) == 0 ? 0 : errno;
  for (uint32_t waited_ms = 0; error == EINPROGRESS; waited_ms += kSliceMs) {
    if (waited_ms == 1'000) {
      report.progress("no answer yet from TCP " + pbox::nic::to_string(address) +
                      "; waiting for 3 s at most");
    }
    pollfd wait{fd, POLLOUT, 0};
    if (poll(&wait, 1, kSliceMs) > 0) {
      socklen_t size = sizeof(error);
      getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    } else if (waited_ms >= kConnectTimeoutMs || stop_requested) {
      error = ETIMEDOUT;
    }
  }
  length = sizeof(storage);
  if (error == 0 && path.uses_sockets() &&
      getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &length) == 0) {
    find_interface(pbox::nic::from_sockaddr(storage), path);
  }
  close(fd);
  return error;
}

std::string remedy_for(int error, const BoxPath& path, const Endpoint& address) {
  const std::string port = std::to_string(path.port);
  const std::string where = pbox::nic::address_string(address);
  switch (error) {
    case ECONNREFUSED:
      return "the machine answers, but no program listens on that port. On the box, run "
             "systemctl status pboxd, and ss -ltn 'sport = :" +
             port +
             "' to see on which address it listens (box.listen). --to BOX:PORT names another "
             "port";
    case ETIMEDOUT:
      return "a firewall drops TCP " + port + ", or the machine is down. Try ping " + where +
             ", and open TCP " + port +
             " for this host on the box. If the box has several NICs, a reverse path filter may "
             "drop what arrives by this one: pboxctl doctor there checks that as 'routes'";
    case ENETUNREACH:
    case EHOSTUNREACH:
      return "ip route get " + where +
             " shows the route from here. The box is down, in another network, or a router refuses "
             "to forward";
    default: return "ip route get " + where;
  }
}

}  // namespace

void find_interface(const Endpoint& local, BoxPath& path) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(all, freeifaddrs);
  for (const ifaddrs* entry = all; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != (local.ipv6 ? AF_INET6 : AF_INET)) continue;
    sockaddr_storage address{};
    std::memcpy(&address, entry->ifa_addr,
                family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in));
    if (pbox::nic::from_sockaddr(address).address != local.address) continue;
    path.interface = entry->ifa_name;
    ifreq request{};
    std::strncpy(request.ifr_name, entry->ifa_name, IFNAMSIZ - 1);
    const int fd = socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (ioctl(fd, SIOCGIFMTU, &request) == 0) {
      constexpr int kIpPacketBytesMax = 65'535;  // loopback's MTU is one more
      path.interface_mtu = static_cast<uint32_t>(std::min(request.ifr_mtu, kIpPacketBytesMax));
    }
    close(fd);
    return;
  }
}

void check_own_routes(const BoxPath& path, Report& report) {
  if (!path.uses_sockets()) return;
  const auto facts = pbox::host::read_host_facts();
  if (!facts) return;
  const auto check = pbox::preflight::check_routes(*facts, {"::"});
  if (check.level != pbox::preflight::CheckLevel::kOk) report.add(check);
}

bool check_route(BoxPath& path, Report& report) {
  const auto addresses = check_name(path, report);
  if (addresses.empty()) return false;
  std::string failures;
  std::string remedy;
  for (const Endpoint& address : addresses) {
    const uint64_t start_ns = pbox::monotonic_ns();
    const int error = try_connect(address, path, report);
    const uint64_t took_us = (pbox::monotonic_ns() - start_ns) / 1'000;
    if (error == 0) {
      path.control = address;
      report.ok("control", "TCP " + pbox::nic::to_string(address) + " answers in " +
                               std::to_string(took_us) + " us" +
                               (path.interface.empty() || !path.uses_sockets()
                                    ? ""
                                    : ", by interface " + path.interface + " of MTU " +
                                          std::to_string(path.interface_mtu)));
      return true;
    }
    failures += (failures.empty() ? "TCP " : "; TCP ") + pbox::nic::to_string(address) + ": " +
                std::generic_category().message(error);
    if (remedy.empty()) remedy = remedy_for(error, path, address);
  }
  check_own_routes(path, report);
  report.fail("control", failures, remedy);
  return false;
}

}  // namespace pboxctl
