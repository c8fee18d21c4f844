// Bounds of tenants, and their weights.
#include <algorithm>
#include <catch2/catch.hpp>

#include "appliance/control/tenants.h"
#include "tests/unit/appliance/control/registry_desk.h"

namespace pbox::control::tenants_test {
namespace {

using Catch::Contains;

constexpr auto kExhausted = static_cast<uint32_t>(ErrorCode::kResourceExhausted);

TenantPolicy policy(const std::string& tenant, const TenantBounds& bounds) {
  TenantPolicy policy;
  policy.set(tenant, bounds);
  return policy;
}

std::string refusal(Desk& desk, const std::string& job) {
  const auto failure = desk.take_failure(desk.join(join_message(job, 0, 1)));
  CHECK(failure.code() == kExhausted);
  return failure.message();
}

tls::Identity keys_of(const std::string& tenant) {
  return {.role = tls::Role::kTenant, .cluster = "rack", .tenant = tenant, .job_glob = "*"};
}

// Keys of a box on which no job starts.
class UnusedKeys : public ConnectionKeys {
 public:
  KeyPolicy policy() const override { return {}; }
  seal::SessionKeys* of(ConnectionId) override { return nullptr; }
};

}  // namespace

TEST_CASE("a tenant that is not listed has the bounds of '*'; without one it has none") {
  TenantPolicy two = policy("acme", {.weight = 3});
  CHECK(two.of("beta") == TenantBounds{});
  two.set("*", {.jobs = 2});
  CHECK(two.of("acme") == TenantBounds{.weight = 3});
  CHECK(two.of("beta") == TenantBounds{.jobs = 2});
  CHECK(two.of("") == TenantBounds{.jobs = 2});
}

TEST_CASE("a tenant has as many jobs as it may, and another tenant's do not count") {
  Desk desk({.tenants = policy("acme", {.jobs = 2})});
  const auto first = desk.start("acme/one", 1);
  desk.start("acme/two", 1);
  desk.start("beta/one", 1);
  desk.start("alone", 1);
  CHECK_THAT(refusal(desk, "acme/three"), Contains("tenant acme has 2 of the 2 jobs") &&
                                              Contains("raise jobs=") && !Contains("beta"));
  desk.say(first[0], leave_message());
  desk.start("acme/three", 1);
  desk.start("beta/two", 1);
}

TEST_CASE("jobs without a tenant are bounded by '*' too") {
  Desk desk({.tenants = policy("*", {.jobs = 1})});
  desk.start("one", 1);
  CHECK_THAT(refusal(desk, "two"), Contains("jobs without a tenant have 1 of the 1 jobs"));
  desk.start("acme/one", 1);
}

TEST_CASE("a tenant's sessions are bounded over all its jobs") {
  Desk desk({.tenants = policy("acme", {.sessions = 6})});  // two for each rank: two pipelines
  desk.start("acme/one", 2);
  CHECK_THAT(desk.take_failure(desk.join(join_message("acme/two", 0, 2))).message(),
             Contains("4 of the 6 sessions") && Contains("4 more"));
  desk.start("acme/two", 1);
  CHECK(desk.registry().tenants().at("acme").sessions == 6);
}

TEST_CASE("a tenant's memory is bounded over all its jobs, and given back") {
  uint64_t job_bytes = 0;
  {
    Desk desk;
    desk.start("acme/one", 1);
    job_bytes = desk.registry().memory_taken_bytes();
  }
  Desk desk({.tenants = policy("acme", {.memory_bytes = job_bytes * 3 / 2})});
  const auto first = desk.start("acme/one", 1);
  CHECK(desk.registry().tenants().at("acme").memory_bytes == job_bytes);
  CHECK_THAT(refusal(desk, "acme/two"), Contains("bytes of memory") && Contains("memory_mib="));
  desk.start("beta/one", 1);
  desk.say(first[0], leave_message());
  desk.start("acme/two", 1);
}

TEST_CASE("a tenant's connections are bounded: with keys when they open, without when they join") {
  SECTION("without keys") {
    Desk desk({.tenants = policy("acme", {.connections = 2})});
    const auto ids = desk.start("acme/one", 2);
    CHECK_THAT(refusal(desk, "acme/two"), Contains("2 of the 2 control connections"));
    desk.start("beta/one", 2);
    desk.say(ids[0], leave_message());
    desk.hang_up(ids[0]);
    desk.start("acme/two", 1);
  }
  SECTION("with keys") {
    std::vector<audit::Record> audited;
    Desk desk({.tenants = policy("acme", {.connections = 2}),
               .audit = [&](const audit::Record& record) { audited.push_back(record); }});
    const ConnectionId first = desk.open(keys_of("acme"));
    desk.open(keys_of("acme"));
    desk.open(keys_of("beta"));
    const ConnectionId third = desk.open(keys_of("acme"));
    CHECK_THAT(desk.take_failure(third).message(), Contains("2 of the 2 control connections"));
    CHECK(desk.is_closed(third));
    CHECK(desk.registry().totals().joins_refused == 1);
    REQUIRE(audited.size() == 1);
    CHECK(audited[0].kind == audit::Kind::kJoinRefused);
    CHECK(audited[0].who == tls::to_uri(keys_of("acme")));
    desk.hang_up(third);
    desk.hang_up(first);
    CHECK_FALSE(desk.is_closed(desk.open(keys_of("acme"))));
    CHECK(desk.registry().tenants().at("acme").connections == 2);
  }
}

TEST_CASE("with keys a job without room is not told what others have; the log is") {
  UnusedKeys keys;
  for (ConnectionKeys* const given :
       {static_cast<ConnectionKeys*>(nullptr), static_cast<ConnectionKeys*>(&keys)}) {
    Desk desk({.job_memory_bytes = 100'000, .keys = given});
    const ConnectionId id = desk.open(keys_of("acme"));
    desk.say(id, join_message("acme/large", 0, 1));
    const std::string message = desk.take_failure(id).message();
    CHECK_THAT(message, Contains("'acme/large' needs "));
    CHECK((message.find("100000") == std::string::npos) == (given != nullptr));
    const auto events = desk.registry().take_events();
    const bool is_logged = std::any_of(events.begin(), events.end(), [](const auto& event) {
      return std::string(event.name) == "no_room" &&
             event.text.find("other jobs hold 0 of the 100000 bytes") != std::string::npos;
    });
    CHECK(is_logged == (given != nullptr));
  }
}

TEST_CASE("a weight gives a running job its share of credit and of the wire, and may change") {
  Desk desk({.tenants = policy("acme", {.weight = 3})}, 1);
  desk.start("acme/one", 2);
  desk.start("beta/one", 2);
  const auto& shards = desk.host().shards(0);
  REQUIRE(shards.size() == 2);
  CHECK(shards[0]->weight == 3);
  CHECK(shards[1]->weight == 1);
  const auto credit = [&](size_t shard) -> double {
    return shards[shard]->sessions()[0].credit_bytes;
  };
  CHECK(credit(0) / credit(1) == Approx(3).epsilon(0.01));
  desk.registry().set_options({.tenants = policy("beta", {.weight = 2})});
  CHECK(shards[0]->weight == 1);
  CHECK(credit(1) / credit(0) == Approx(2).epsilon(0.01));
}

}  // namespace pbox::control::tenants_test
