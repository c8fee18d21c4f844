#include <catch2/catch.hpp>

#include "config/address.h"
#include "config/cpu_list.h"
#include "config/value.h"

namespace pbox::config {

TEST_CASE("cpu lists read ranges, sort, and print back in the kernel's form") {
  CHECK(read_cpu_list("") == std::vector<int>{});
  CHECK(read_cpu_list("8, 2-5") == std::vector<int>{2, 3, 4, 5, 8});
  CHECK(print_cpu_list({2, 3, 4, 5, 8}) == "2-5,8");
  CHECK(print_cpu_list({}).empty());
}

TEST_CASE("a cpu list that names a cpu twice, or nothing sensible, is refused") {
  for (const char* text :
       {"1,1", "1-3,2", "3-1", "a", "1,,2", "1,", "-1", "1-", "1024", "0-1024"}) {
    CAPTURE(text);
    CHECK_FALSE(read_cpu_list(text));
  }
}

TEST_CASE("numbers are read whole or not at all") {
  CHECK(read_number("18446744073709551615") == ~0ull);
  for (const char* text : {"", "-1", "+1", "1 ", "0x10", "18446744073709551616", "8M"}) {
    CAPTURE(text);
    CHECK_FALSE(read_number(text));
  }
  CHECK(read_fraction("0.85") == 0.85);
  for (const char* text : {"", "nan", "inf", "0.5x"}) {
    CAPTURE(text);
    CHECK_FALSE(read_fraction(text));
  }
}

TEST_CASE("addresses are told apart by what they reach") {
  CHECK(is_address("10.0.0.7"));
  CHECK(is_address("fe80::1"));
  CHECK_FALSE(is_address("localhost"));
  CHECK_FALSE(is_address("10.0.0.7:9541"));
  for (const char* text : {"127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"}) {
    CAPTURE(text);
    CHECK(is_loopback_address(text));
  }
  for (const char* text :
       {"0.0.0.0", "::", "10.0.0.7", "::ffff:10.0.0.7", "localhost", "128.0.0.1"}) {
    CAPTURE(text);
    CHECK_FALSE(is_loopback_address(text));
  }
  CHECK(is_wildcard_address("0.0.0.0"));
  CHECK(is_wildcard_address("::"));
  CHECK_FALSE(is_wildcard_address("127.0.0.1"));
}

}  // namespace pbox::config
