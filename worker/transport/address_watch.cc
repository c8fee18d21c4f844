#include "worker/transport/address_watch.h"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "nic/socket/address.h"
#include "worker/process/fork_guard.h"

namespace pbox::worker {
namespace {

// Room for many of the kernel's notes, which are about 100 bytes long.
constexpr size_t kNoteBytes = 16 * 1024;

// Returns the address that an RTM_DELADDR is about. On a link with two ends, IFA_ADDRESS is the
// other end's.
std::optional<nic::Endpoint> address_of(nlmsghdr& note) {
  auto* about = static_cast<ifaddrmsg*>(NLMSG_DATA(&note));
  nic::Endpoint endpoint{.ipv6 = about->ifa_family == AF_INET6};
  const size_t bytes = endpoint.ipv6 ? 16 : 4;
  bool is_known = false;
  auto left = static_cast<unsigned>(IFA_PAYLOAD(&note));
  for (rtattr* field = IFA_RTA(about); RTA_OK(field, left); field = RTA_NEXT(field, left)) {
    const bool is_own = field->rta_type == IFA_LOCAL;
    if ((!is_own && field->rta_type != IFA_ADDRESS) || RTA_PAYLOAD(field) != bytes) continue;
    if (is_known && !is_own) continue;
    std::memcpy(endpoint.address.data(), RTA_DATA(field), bytes);
    is_known = true;
  }
  if (!is_known) return std::nullopt;
  const bool is_link_local =
      endpoint.ipv6 && endpoint.address[0] == 0xfe && (endpoint.address[1] & 0xc0) == 0x80;
  if (is_link_local) endpoint.scope_id = about->ifa_index;
  return endpoint;
}

}  // namespace

std::optional<AddressWatch> AddressWatch::open() {
  const int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, NETLINK_ROUTE);
  if (fd < 0) return std::nullopt;
  sockaddr_nl groups{};
  groups.nl_family = AF_NETLINK;
  groups.nl_groups = RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR;
  if (bind(fd, reinterpret_cast<sockaddr*>(&groups), sizeof(groups)) != 0) {
    close(fd);
    return std::nullopt;
  }
  close_in_child(fd);
  return AddressWatch(fd);
}

AddressWatch::~AddressWatch() {
  if (fd_ < 0) return;
  forget_in_child(fd_);
  close(fd_);
}

// If the kernel has dropped notes because too many waited, packets that it refuses to send still
// show the loss (Transport::path_failure).
std::vector<nic::Endpoint> AddressWatch::take_lost() {
  std::vector<nic::Endpoint> lost;
  alignas(nlmsghdr) std::array<char, kNoteBytes> notes;
  for (;;) {
    const ssize_t bytes = recv(fd_, notes.data(), notes.size(), 0);
    if (bytes < 0 && (errno == EINTR || errno == ENOBUFS)) continue;
    if (bytes <= 0) break;
    auto left = static_cast<unsigned>(bytes);
    for (auto* note = reinterpret_cast<nlmsghdr*>(notes.data()); NLMSG_OK(note, left);
         note = NLMSG_NEXT(note, left)) {
      if (note->nlmsg_type != RTM_DELADDR) continue;
      if (const auto gone = address_of(*note)) lost.push_back(*gone);
    }
  }
  std::erase_if(lost, nic::host_has_address);
  return lost;
}

}  // namespace pbox::worker
