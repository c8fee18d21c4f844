#include "appliance/host/source_route.h"

#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>

namespace pbox::host {
namespace {

// Addresses for documentation (RFC 5737, RFC 3849). No network of this host contains them.
constexpr char kFarAddress4[] = "198.51.100.1";
constexpr char kFarAddress6[] = "2001:db8::1";

// A request for the route from one address to another.
struct Question {
  nlmsghdr header;
  rtmsg route;
  std::array<char, 2 * RTA_SPACE(16)> attributes;
};

void add_address(Question& question, uint16_t type, const nic::Endpoint& address) {
  const size_t bytes = address.ipv6 ? 16 : 4;
  auto* attribute = reinterpret_cast<rtattr*>(reinterpret_cast<char*>(&question) +
                                              NLMSG_ALIGN(question.header.nlmsg_len));
  attribute->rta_type = type;
  attribute->rta_len = static_cast<uint16_t>(RTA_LENGTH(bytes));
  std::memcpy(RTA_DATA(attribute), address.address.data(), bytes);
  question.header.nlmsg_len =
      NLMSG_ALIGN(question.header.nlmsg_len) + static_cast<uint32_t>(RTA_LENGTH(bytes));
}

// Returns the index of the outgoing interface that the answer names; 0 if it names none. `bytes`:
// the length of the answer.
unsigned interface_in(const nlmsghdr& answer, size_t bytes) {
  if (!NLMSG_OK(&answer, bytes) || answer.nlmsg_type != RTM_NEWROUTE) return 0;
  const auto* route = static_cast<const rtmsg*>(NLMSG_DATA(&answer));
  auto left = static_cast<int>(RTM_PAYLOAD(&answer));
  for (const rtattr* each = RTM_RTA(route); RTA_OK(each, left); each = RTA_NEXT(each, left)) {
    if (each->rta_type != RTA_OIF) continue;
    unsigned index = 0;
    std::memcpy(&index, RTA_DATA(each), sizeof(index));
    return index;
  }
  return 0;
}

}  // namespace

std::string way_out_of(const nic::Endpoint& own) {
  const auto far = nic::parse_endpoint(own.ipv6 ? kFarAddress6 : kFarAddress4, 0);
  Question question{};
  question.header.nlmsg_len = NLMSG_LENGTH(sizeof(rtmsg));
  question.header.nlmsg_type = RTM_GETROUTE;
  question.header.nlmsg_flags = NLM_F_REQUEST;
  question.route.rtm_family = own.ipv6 ? AF_INET6 : AF_INET;
  question.route.rtm_dst_len = question.route.rtm_src_len = own.ipv6 ? 128 : 32;
  add_address(question, RTA_DST, *far);
  add_address(question, RTA_SRC, own);
  const int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
  if (fd < 0) return {};
  alignas(nlmsghdr) std::array<char, 4096> answer;
  ssize_t bytes = -1;
  if (send(fd, &question, question.header.nlmsg_len, 0) > 0) {
    bytes = recv(fd, answer.data(), answer.size(), 0);  // the kernel has answered already
  }
  close(fd);
  if (bytes <= 0) return {};
  const unsigned index =
      interface_in(*reinterpret_cast<const nlmsghdr*>(answer.data()), static_cast<size_t>(bytes));
  char name[IF_NAMESIZE] = {};
  return index != 0 && if_indextoname(index, name) != nullptr ? name : "";
}

}  // namespace pbox::host
