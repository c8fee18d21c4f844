#include <catch2/catch.hpp>

#include "config/parse.h"
#include "config/tenant_list.h"

namespace pbox::config::tenant_list_test {
namespace {

std::string only_fault(const std::string& text) {
  const auto faults = read_tenants(text).faults;
  CHECK(faults.size() == 1);
  return faults.empty() ? std::string() : faults[0];
}

}  // namespace

TEST_CASE("an item is a tenant and its bounds, in one form whatever was written") {
  const auto read = read_tenants(
      " acme  jobs=10 weight=3 memory_mib=4096; beta ;* sessions=64 connections=100 weight=1");
  CHECK(read.faults == std::vector<std::string>{});
  const std::vector<Tenant> expected = {
      {"acme", 3, 10, 4096, 0, 0}, {"beta", 1, 0, 0, 0, 0}, {"*", 1, 0, 0, 64, 100}};
  CHECK(read.tenants == expected);
  CHECK(print_tenants(expected) ==
        "acme weight=3 jobs=10 memory_mib=4096; beta; * sessions=64 connections=100");
  CHECK(read_tenants(print_tenants(expected)).tenants == expected);
  CHECK(read_tenants("").tenants.empty());
}

TEST_CASE("a fault of a tenant names the tenant, the word and what to write in its place") {
  using Catch::Contains;
  struct Row {
    std::string text, word, remedy;
  };
  const Row rows[] = {
      {"acme jobs=0", "acme: jobs=0 is not accepted", "or remove jobs"},
      {"acme jobs=ten", "jobs=ten is not accepted", "1 to 1000000"},
      {"acme weight=1001", "weight=1001 is not accepted", "1 to 1000"},
      {"acme memory=5", "memory=5 is not understood", "memory_mib="},
      {"acme jobs", "jobs is not understood", "each with a number"},
      {"acme; acme", "acme: the tenant is listed twice", "remove one"},
      {"a/b jobs=1", "a/b: begin with the tenant's name", "'*'"},
      {"acme;", "an item is empty", "remove a ';'"},
  };
  for (const Row& row : rows) {
    INFO(row.text);
    CHECK_THAT(only_fault(row.text), Contains(row.word) && Contains(row.remedy));
  }
}

TEST_CASE("tenants may change while the box runs") {
  const auto running = parse_text("[jobs]\ntenants = acme weight=3\n");
  REQUIRE(running.config);
  const auto outcome = reload(*running.config, parse_text("[jobs]\ntenants = * jobs=4\n"));
  REQUIRE(outcome.config);
  CHECK(outcome.config->jobs.tenants == std::vector<Tenant>{{.name = "*", .jobs = 4}});
  CHECK(outcome.applied == std::vector<std::string>{"jobs.tenants: acme weight=3 -> * jobs=4"});
}

}  // namespace pbox::config::tenant_list_test
