#include <catch2/catch.hpp>

#include "nic/rdma/gid.h"

namespace pbox::nic {
namespace {

using Catch::Contains;

GidEntry entry(uint32_t index, const std::string& address, bool is_usable = true) {
  return {index, gid_of(*parse_endpoint(address, 0)), is_usable};
}

// The GID table that Linux creates: for each address one entry of RoCE v1 and one of v2.
std::vector<GidEntry> table() {
  return {entry(0, "fe80::1", false), entry(1, "fe80::1"),   entry(2, "10.9.0.1", false),
          entry(3, "10.9.0.1"),       entry(5, "192.0.2.7"), entry(7, "2001:db8::7")};
}

uint32_t chosen_near(const std::string& address) {
  const auto choice = choose_gid(table(), std::nullopt, *parse_endpoint(address, 9542));
  REQUIRE(choice);
  CHECK_THAT(choice->reason, Contains(address));
  return choice->entry.index;
}

}  // namespace

TEST_CASE("the GID nearest to the peer is chosen, and never one of RoCE v1") {
  CHECK(chosen_near("10.9.0.1") == 3);
  CHECK(chosen_near("10.9.0.200") == 3);
  CHECK(chosen_near("10.200.0.1") == 3);
  CHECK(chosen_near("192.0.2.9") == 5);
  CHECK(chosen_near("2001:db8::1") == 7);
  CHECK(chosen_near("fe80::2") == 1);
}

TEST_CASE("without a peer address the first usable GID is chosen") {
  const auto choice = choose_gid(table(), std::nullopt, std::nullopt);
  REQUIRE(choice);
  CHECK(choice->entry.index == 1);
}

TEST_CASE("a given GID index is used, or refused with a list of the entries") {
  const auto near = *parse_endpoint("192.0.2.9", 0);
  const auto choice = choose_gid(table(), 3, near);
  REQUIRE(choice);
  CHECK(choice->entry.index == 3);
  CHECK(choice->reason == "as configured");
  CHECK_THAT(choose_gid(table(), 2, near).error().message,
             Contains("GID index 2 is a RoCE v1 GID") && Contains("3 (10.9.0.1)"));
  CHECK_THAT(choose_gid(table(), 4, near).error().message,
             Contains("GID index 4 is not in the GID table") && Contains("5 (192.0.2.7)"));
}

TEST_CASE("a port without a usable GID is refused") {
  CHECK_THAT(
      choose_gid({}, std::nullopt, std::nullopt).error().message,
      Contains("the table is empty") && Contains("give the device's network interface an address"));
  const std::vector<GidEntry> old = {entry(0, "10.9.0.1", false)};
  CHECK_THAT(choose_gid(old, std::nullopt, std::nullopt).error().message,
             Contains("0 (10.9.0.1, RoCE v1)"));
}

}  // namespace pbox::nic
