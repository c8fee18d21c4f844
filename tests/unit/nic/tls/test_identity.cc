// Identities: their URIs, and the jobs of a tenant.
#include <catch2/catch.hpp>

#include "nic/tls/identity.h"

namespace pbox::test::identity_test {
namespace {

using Catch::Contains;
using tls::Identity;
using tls::RankRange;
using tls::Role;

Identity tenant(const std::string& glob) {
  return {.role = Role::kTenant, .cluster = "rack", .tenant = "acme", .job_glob = glob};
}

std::string refusal(const std::string& uri) {
  const auto parsed = tls::parse_identity(uri);
  return parsed ? "" : parsed.error().message;
}

}  // namespace

TEST_CASE("every kind of identity is parsed from its URI and printed as the same URI") {
  const std::vector<std::pair<std::string, Identity>> table = {
      {"pbox://rack/box/box-1.a_b", {.role = Role::kBox, .cluster = "rack", .box = "box-1.a_b"}},
      {"pbox://rack/operator", {.role = Role::kOperator, .cluster = "rack"}},
      {"pbox://rack/viewer", {.role = Role::kViewer, .cluster = "rack"}},
      {"pbox://rack/tenant/acme/job/*/rank/*", tenant("*")},
      {"pbox://rack/tenant/acme/job/resnet-?/rank/0-63",
       {.role = Role::kTenant,
        .cluster = "rack",
        .tenant = "acme",
        .job_glob = "resnet-?",
        .ranks = {0, 63}}}};
  for (const auto& [uri, identity] : table) {
    CAPTURE(uri);
    const auto parsed = tls::parse_identity(uri);
    REQUIRE(parsed.ok());
    CHECK(*parsed == identity);
    CHECK(tls::to_uri(identity) == uri);
  }
}

TEST_CASE("an identity that is not in one of the forms is refused, with its value") {
  const std::string long_name(65, 'x');
  for (const std::string& uri : std::vector<std::string>{"",
                                                         "pbox:",
                                                         "pbox://",
                                                         "pbox://rack",
                                                         "pbox://rack/",
                                                         "PBOX://rack/operator",
                                                         "spiffe://rack/box/a",
                                                         "pbox://rack/box",
                                                         "pbox://rack/box/",
                                                         "pbox://rack/box/a/",
                                                         "pbox://rack/box/a/b",
                                                         "pbox:///operator",
                                                         "pbox://ra ck/operator",
                                                         "pbox://rack/operator/",
                                                         "pbox://rack/operator/x",
                                                         "pbox://rack/root",
                                                         "pbox://rack/box/a*",
                                                         "pbox://rack/box/" + long_name,
                                                         "pbox://" + long_name + "/viewer",
                                                         "pbox://rack/tenant/acme",
                                                         "pbox://rack/tenant/acme/job/x",
                                                         "pbox://rack/tenant/acme/job/x/rank",
                                                         "pbox://rack/tenant/acme/job/x/rank/",
                                                         "pbox://rack/tenant//job/x/rank/*",
                                                         "pbox://rack/tenant/acme/job//rank/*",
                                                         "pbox://rack/tenant/a*/job/x/rank/*",
                                                         "pbox://rack/tenant/acme/jobs/x/rank/*",
                                                         "pbox://rack/tenant/acme/job/x/ranks/*",
                                                         "pbox://rack/tenant/acme/job/x/rank/*/y",
                                                         std::string("pbox://rack/box/a\0b", 19)}) {
    CAPTURE(uri);
    CHECK_THAT(refusal(uri), Contains("'" + uri + "'"));
  }
}

TEST_CASE("a range of ranks is '*' or two numbers in one form only") {
  const auto whole = tls::parse_ranks("*");
  REQUIRE(whole.ok());
  CHECK(whole->contains(0));
  CHECK(whole->contains(UINT32_MAX));
  const auto some = tls::parse_ranks("7-7");
  REQUIRE(some.ok());
  CHECK(*some == RankRange{7, 7});
  CHECK(some->contains(7));
  CHECK_FALSE(some->contains(6));
  CHECK_FALSE(some->contains(8));
  for (const char* text : {"", "7", "-", "7-", "-7", "8-7", "0-256", "00-1", "0-01", "+0-1", "0-1 ",
                           "0-4294967296", "**", "0-*", "0-1-2"}) {
    CAPTURE(text);
    const auto ranks = tls::parse_ranks(text);
    REQUIRE_FALSE(ranks.ok());
    CHECK_THAT(ranks.error().message, Contains(std::string("'") + text + "'"));
  }
}

TEST_CASE("a tenant owns the jobs below its name that its pattern matches") {
  struct Row {
    const char* glob;
    const char* job;
    bool owns;
  };
  for (const Row& row : std::vector<Row>{{"*", "acme/x", true},
                                         {"*", "acme/team/x", true},
                                         {"*", "acme/", false},
                                         {"*", "acme", false},
                                         {"*", "acmes/x", false},
                                         {"*", "other/x", false},
                                         {"*", "x", false},
                                         {"resnet", "acme/resnet", true},
                                         {"resnet", "acme/resnet2", false},
                                         {"resnet*", "acme/resnet", true},
                                         {"resnet*", "acme/resnet50", true},
                                         {"*net", "acme/resnet", true},
                                         {"*net", "acme/net-net", true},
                                         {"*net", "acme/nets", false},
                                         {"a*b*c", "acme/abbc", true},
                                         {"a*b*c", "acme/acb", false},
                                         {"a*b*c", "acme/aXbXbXc", true},
                                         {"run-?", "acme/run-1", true},
                                         {"run-?", "acme/run-", false},
                                         {"run-?", "acme/run-12", false},
                                         {"**", "acme/x", true},
                                         {"?*", "acme/x", true}}) {
    CAPTURE(row.glob, row.job);
    CHECK(tls::owns_job(tenant(row.glob), row.job) == row.owns);
  }
  CHECK_FALSE(tls::owns_job(
      {.role = Role::kOperator, .cluster = "rack", .tenant = "acme", .job_glob = "*"}, "acme/x"));
}

}  // namespace pbox::test::identity_test
