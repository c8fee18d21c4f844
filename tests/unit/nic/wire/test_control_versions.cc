#include <catch2/catch.hpp>

#include "nic/wire/control_versions.h"

namespace pbox::wire {
namespace {

// Fields that exist, as if newer versions had added them.
constexpr AddedField kFields[] = {
    {"Join.numerics", 3, AddedField::Scope::kJob,
     [](const proto::WorkerMessage& message) { return message.join().numerics() != 0; }},
    {"Join.rejoins", 3, AddedField::Scope::kReceiver,
     [](const proto::WorkerMessage& message) { return message.join().rejoins(); }},
    {"Join.software", 3},
};

proto::WorkerMessage join(uint32_t numerics, bool rejoins) {
  proto::WorkerMessage message;
  message.mutable_join()->set_numerics(numerics);
  message.mutable_join()->set_rejoins(rejoins);
  message.mutable_join()->set_software("libpbox");
  return message;
}

std::vector<std::string> names(const std::vector<const AddedField*>& fields) {
  std::vector<std::string> names;
  for (const AddedField* field : fields) names.emplace_back(field->name);
  return names;
}

std::vector<std::string> needs(const proto::WorkerMessage& message) {
  return {message.needs().begin(), message.needs().end()};
}

}  // namespace

TEST_CASE("two peers talk the newest version that both know") {
  CHECK(common_version({2, 3}, {2, 3}) == 3);
  CHECK(common_version({2, 2}, {2, 3}) == 2);
  CHECK(common_version({2, 3}, {3, 4}) == 3);
  CHECK(common_version({2, 2}, {3, 4}) == std::nullopt);
  CHECK(common_version({4, 5}, {2, 3}) == std::nullopt);
  CHECK(common_version({0, 0}, {2, 3}) == std::nullopt);
  CHECK(to_string(VersionRange{2, 2}) == "2");
  CHECK(to_string(VersionRange{2, 3}) == "2 to 3");
}

TEST_CASE("a message needs the fields that it uses and that an older version lacks") {
  CHECK(names(used_fields(join(1, true), 2, kFields)) ==
        std::vector<std::string>{"Join.numerics", "Join.rejoins"});
  CHECK(names(used_fields(join(0, true), 2, kFields)) == std::vector<std::string>{"Join.rejoins"});
  CHECK(used_fields(join(1, true), 3, kFields).empty());
  CHECK(used_fields(join(0, false), 2, kFields).empty());
  CHECK(version_of_job(join(1, false), kFields) == 3);
  // Other ranks need not know what one rank asks the box for.
  CHECK(version_of_job(join(0, true), kFields) == kControlProtocolVersionMin);
}

TEST_CASE("a message states the oldest version that suffices, and what it needs") {
  auto plain = join(0, false);
  state_versions(plain, kFields);
  CHECK(plain.join().protocol_version() == 2);
  CHECK(plain.newest_version() == 3);
  CHECK(plain.needs_size() == 0);
  CHECK(stated_versions(plain) == VersionRange{2, 3});
  auto newer = join(1, false);
  state_versions(newer, kFields);
  CHECK(newer.join().protocol_version() == 3);
  CHECK(needs(newer) == std::vector<std::string>{"Join.numerics"});
  CHECK(stated_versions(newer) == VersionRange{3, 3});
  proto::WorkerMessage report;
  report.mutable_ask_report();
  state_versions(report);
  CHECK(report.ask_report().protocol_version() == 3);
  CHECK(needs(report) == std::vector<std::string>{"WorkerMessage.ask_report"});
}

TEST_CASE("a peer of version 2 states only that one") {
  auto older = join(0, false);
  older.mutable_join()->set_protocol_version(2);
  CHECK(stated_versions(older) == VersionRange{2, 2});
  CHECK(stated_versions(proto::DataAddresses()) == VersionRange{2, 2});
  proto::DataAddresses newer;
  newer.set_oldest_version(3);
  newer.set_newest_version(4);
  CHECK(stated_versions(newer) == VersionRange{3, 4});
  proto::WorkerMessage heartbeat;
  heartbeat.mutable_heartbeat();
  CHECK(stated_versions(heartbeat) == std::nullopt);
}

TEST_CASE("a need that this release does not know is found by its name") {
  proto::WorkerMessage message;
  CHECK(unknown_need(message.needs()) == nullptr);
  message.add_needs("WorkerMessage.ask_report");
  CHECK(unknown_need(message.needs()) == nullptr);
  message.add_needs("Join.compression");
  REQUIRE(unknown_need(message.needs()) != nullptr);
  CHECK(*unknown_need(message.needs()) == "Join.compression");
}

}  // namespace pbox::wire
