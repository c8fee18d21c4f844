// Jobs whose ranks and boxes have proved identities.
#include <catch2/catch.hpp>

#include "tests/unit/appliance/control/registry_desk.h"

namespace pbox::control::job_registry_keys_test {
namespace {

using Catch::Contains;

constexpr char kJob[] = "acme/run";

tls::Identity identity(const std::string& uri) {
  return tls::parse_identity(uri).value();
}

tls::Identity worker(const std::string& glob = "*") {
  return identity("pbox://rack/tenant/acme/job/" + glob + "/rank/*");
}

ConnectionId join_as(Desk& desk, const tls::Identity& who, const proto::WorkerMessage& message) {
  const ConnectionId id = desk.open(who);
  desk.say(id, message);
  return id;
}

proto::WorkerMessage join_of(uint32_t rank, bool rejoins = false) {
  auto message = join_message(kJob, rank, 2);
  message.mutable_join()->set_incarnation(rejoins ? 7 : 1000 + rank);
  message.mutable_join()->set_rejoins(rejoins);
  return message;
}

std::vector<ConnectionId> start(Desk& desk, const tls::Identity& who) {
  std::vector<ConnectionId> ids;
  for (const uint32_t rank : {0u, 1u}) ids.push_back(join_as(desk, who, join_of(rank)));
  for (const ConnectionId id : ids) REQUIRE(desk.take(id).at(0).has_session());
  return ids;
}

proto::WorkerMessage ask_state() {
  proto::WorkerMessage message;
  message.mutable_ask_state()->set_protocol_version(wire::kControlProtocolVersion);
  message.mutable_ask_state()->set_job(kJob);
  return message;
}

}  // namespace

TEST_CASE("a lost rank's place is for the identity that had it, not for another that may join") {
  Desk desk;
  const auto ids = start(desk, worker());
  desk.hang_up(ids[1]);
  for (const auto& other : {worker("run"), identity("pbox://rack/box/b")}) {
    const auto failure = desk.take_failure(join_as(desk, other, join_of(1, true)));
    CHECK_THAT(failure.message(), Contains("rank 1") && Contains(tls::to_uri(worker())) &&
                                      Contains(tls::to_uri(other)) &&
                                      Contains("keys of the same identity"));
  }
  // Renewed keys state the same identity.
  const ConnectionId back = join_as(desk, worker(), join_of(1, true));
  CHECK(desk.take(back).at(0).has_session());
  CHECK(desk.registry().totals().workers_back == 1);
}

TEST_CASE("a rank that leaves before the start gives its place to whoever may join") {
  Desk desk;
  const ConnectionId first = join_as(desk, worker(), join_of(0));
  desk.hang_up(first);
  CHECK(desk.take(join_as(desk, worker("run"), join_of(0))).empty());  // it waits for rank 1
  CHECK(desk.take(join_as(desk, worker(), join_of(1))).at(0).has_session());
}

TEST_CASE("a box that takes a job over gives each place to the first that resumes there") {
  Desk desk;
  std::vector<ConnectionId> ids;
  for (const uint32_t rank : {0u, 1u}) {
    auto message = join_optimizing(rank);
    message.mutable_join()->set_job(kJob);
    ids.push_back(join_as(desk, worker(), message));
  }
  std::vector<proto::Session> sessions;
  for (const ConnectionId id : ids) sessions.push_back(desk.take(id).at(0).session());
  desk.crash();
  const auto resuming = [&](uint32_t rank) {
    auto message = join_optimizing(rank);
    message.mutable_join()->set_job(kJob);
    message.mutable_join()->set_resumes(true);
    message.mutable_join()->set_epoch(sessions[rank].epoch());
    message.mutable_join()->set_generation(sessions[rank].generation());
    return message;
  };
  const ConnectionId again = join_as(desk, worker(), resuming(0));
  CHECK(desk.take(again).empty());
  const auto failure = desk.take_failure(join_as(desk, worker("run"), resuming(0)));
  CHECK_THAT(failure.message(), Contains("belongs to " + tls::to_uri(worker())));
}

TEST_CASE("a box asks for state only while the cluster's store lists it") {
  Desk desk;
  const auto box = identity("pbox://rack/box/b");
  const ConnectionId stranger = desk.open(box);
  desk.say(stranger, ask_state());
  CHECK_THAT(desk.take_failure(stranger).message(),
             Contains("do not allow AskState") && Contains("lists no box 'b'"));
  desk.parts.listed = {"b"};
  const ConnectionId member = desk.open(box);
  desk.say(member, ask_state());
  CHECK_THAT(desk.take_failure(member).message(), !Contains("do not allow"));
}

TEST_CASE("the tenant of a job is that of its ranks, and none if they are boxes") {
  Roster roster(2);
  CHECK(roster.tenant().empty());
  roster[1].identity = identity("pbox://rack/box/b");
  CHECK(roster.tenant().empty());
  roster[1].identity = worker();
  CHECK(roster.tenant() == "acme");
}

}  // namespace pbox::control::job_registry_keys_test
