#include "config/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstdint>

namespace pbox::config {
namespace {

bool read_v4(const std::string& text, in_addr& address) {
  return inet_pton(AF_INET, text.c_str(), &address) == 1;
}

bool read_v6(const std::string& text, in6_addr& address) {
  return inet_pton(AF_INET6, text.c_str(), &address) == 1;
}

bool is_loopback_v4(uint32_t address) {
  return address >> 24 == 127;
}

}  // namespace

bool is_address(const std::string& text) {
  in_addr v4;
  in6_addr v6;
  return read_v4(text, v4) || read_v6(text, v6);
}

bool is_loopback_address(const std::string& text) {
  in_addr v4;
  in6_addr v6;
  if (read_v4(text, v4)) return is_loopback_v4(ntohl(v4.s_addr));
  if (!read_v6(text, v6)) return false;
  if (IN6_IS_ADDR_V4MAPPED(&v6)) return v6.s6_addr[12] == 127;
  return IN6_IS_ADDR_LOOPBACK(&v6);
}

bool is_wildcard_address(const std::string& text) {
  in_addr v4;
  in6_addr v6;
  if (read_v4(text, v4)) return v4.s_addr == INADDR_ANY;
  return read_v6(text, v6) && IN6_IS_ADDR_UNSPECIFIED(&v6);
}

}  // namespace pbox::config
