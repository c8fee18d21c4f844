#include <catch2/catch.hpp>

#include "nic/endpoint.h"
#include "nic/socket/address.h"

namespace pbox::nic {

TEST_CASE("an endpoint is printed as it was parsed, with IPv6 addresses in brackets") {
  CHECK(to_string(*parse_endpoint("127.0.0.1", 9542)) == "127.0.0.1:9542");
  CHECK(to_string(*parse_endpoint("10.1.2.3", 0)) == "10.1.2.3:0");
  CHECK(to_string(*parse_endpoint("::1", 65535)) == "[::1]:65535");
  CHECK(to_string(*parse_endpoint("2001:db8:0:0::7", 1)) == "[2001:db8::7]:1");
  CHECK(address_string(*parse_endpoint("fe80::1", 1)) == "fe80::1");
}

TEST_CASE("an address that is not numeric is refused with an error that quotes it") {
  for (const char* text : {"", "localhost", "1.2.3", "1.2.3.256", "::g", "[::1]", "127.0.0.1:80"}) {
    INFO(text);
    const auto endpoint = parse_endpoint(text, 1);
    REQUIRE_FALSE(endpoint.ok());
    CHECK(endpoint.error().message.find(std::string("'") + text + "'") != std::string::npos);
  }
}

TEST_CASE("only 127.0.0.0/8 and ::1 are loopback") {
  CHECK(parse_endpoint("127.0.0.1", 1)->is_loopback());
  CHECK(parse_endpoint("127.255.0.9", 1)->is_loopback());
  CHECK(parse_endpoint("::1", 1)->is_loopback());
  CHECK_FALSE(parse_endpoint("128.0.0.1", 1)->is_loopback());
  CHECK_FALSE(parse_endpoint("::2", 1)->is_loopback());
  CHECK_FALSE(parse_endpoint("::", 1)->is_loopback());
  CHECK_FALSE(parse_endpoint("7f00::1", 1)->is_loopback());
}

TEST_CASE("endpoints differ by address, port, family and scope") {
  const Endpoint one = *parse_endpoint("127.0.0.1", 1);
  CHECK(one == *parse_endpoint("127.0.0.1", 1));
  CHECK(one != *parse_endpoint("127.0.0.1", 2));
  CHECK(one != *parse_endpoint("127.0.0.2", 1));
  CHECK(one != *parse_endpoint("7f00:1::", 1));  // has the same bytes
  Endpoint scoped = *parse_endpoint("fe80::1", 1);
  scoped.scope_id = 3;
  CHECK(scoped != *parse_endpoint("fe80::1", 1));
}

TEST_CASE("an endpoint survives conversion to a socket address and back") {
  for (const char* text : {"192.0.2.17", "2001:db8::beef"}) {
    Endpoint endpoint = *parse_endpoint(text, 0x1234);
    if (endpoint.ipv6) endpoint.scope_id = 5;
    sockaddr_storage address{};
    to_sockaddr(endpoint, address);
    CHECK(from_sockaddr(address) == endpoint);
  }
}

}  // namespace pbox::nic
