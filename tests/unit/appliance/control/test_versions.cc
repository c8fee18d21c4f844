// Peers of other releases: workers and boxes of control protocol 2 as their definitions encode
// them, ranks of one job that talk different versions, and fields that only newer peers know.
#include <catch2/catch.hpp>
#include <map>

#include "nic/wire/control_versions.h"
#include "tests/control_v2.pb.h"
#include "tests/golden/control_frames_v2.h"
#include "tests/support/hexadecimal.h"
#include "tests/unit/appliance/control/registry_desk.h"

namespace pbox::control {
namespace {

namespace v2 = proto::v2;
using Catch::Contains;
using Scope = wire::AddedField::Scope;

// A field that exists, as if version 3 had added it.
constexpr wire::AddedField kNumericsIsNew[] = {
    {"Join.numerics", 3, Scope::kJob,
     [](const proto::WorkerMessage& message) { return message.join().numerics() != 0; }}};

std::string frame_v2(const std::string& name) {
  for (const auto& frame : golden::kWorkerFramesV2) {
    if (frame.name == name) return test::from_hexadecimal(frame.bytes);
  }
  FAIL("no frame " << name);
  return {};
}

ConnectionId join_v2(Desk& desk, const std::string& name) {
  const ConnectionId id = desk.open();
  desk.say_bytes(id, frame_v2(name));
  return id;
}

// Returns the messages as a peer of version 2 reads them.
std::vector<v2::BoxMessage> take_v2(Desk& desk, ConnectionId id) {
  std::vector<v2::BoxMessage> read;
  for (const proto::BoxMessage& message : desk.take(id)) {
    REQUIRE(read.emplace_back().ParseFromString(message.SerializeAsString()));
  }
  return read;
}

v2::BoxMessage only_v2(Desk& desk, ConnectionId id) {
  const auto messages = take_v2(desk, id);
  REQUIRE(messages.size() == 1);
  return messages[0];
}

// The JOIN of a rank of this release, in the job of the golden frames.
proto::WorkerMessage join_of_this_release(uint32_t rank, wire::AddedFields fields,
                                          uint32_t numerics = 0) {
  auto message = join_message("train", rank, 2);
  message.mutable_join()->set_chunk_bytes(32'768);
  message.mutable_join()->set_numerics(numerics);
  message.mutable_join()->set_software("libpbox of this release");
  wire::state_versions(message, fields);
  return message;
}

}  // namespace

TEST_CASE("workers of control protocol 2 run a job, and understand every answer") {
  Desk desk;
  const ConnectionId asking = join_v2(desk, "ask_data_addresses");
  CHECK(only_v2(desk, asking).has_data_addresses());
  desk.say_bytes(asking, frame_v2("ask_part_map"));
  REQUIRE(desk.parts.questions.size() == 1);
  CHECK(desk.parts.questions[0].job() == "train");
  desk.say_bytes(asking, frame_v2("ask_part_map_of_lost_box"));
  REQUIRE(desk.parts.questions.size() == 2);
  CHECK(desk.parts.questions[1].lost_for_ms() == 1700);

  const ConnectionId ids[] = {join_v2(desk, "join_rank_0"), join_v2(desk, "join_rank_1")};
  for (const ConnectionId id : ids) {
    const v2::BoxMessage message = only_v2(desk, id);
    REQUIRE(message.has_session());
    CHECK(message.session().protocol_version() == 2);
    CHECK(message.session().pipelines_size() == 2);
    CHECK(message.session().chunk_bytes() == 32'768);
  }
  for (const ConnectionId id : ids) {
    desk.say_bytes(id, frame_v2("heartbeat"));
    desk.say_bytes(id, frame_v2("barrier"));
  }
  for (const ConnectionId id : ids) {
    CHECK(only_v2(desk, id).barrier_released().sequence() == 1);
  }
  desk.say_bytes(ids[0], frame_v2("set_priorities"));
  CHECK(only_v2(desk, ids[0]).has_set_priorities());
  CHECK(only_v2(desk, ids[1]).has_set_priorities());
  desk.say_bytes(ids[0], frame_v2("leave"));
  CHECK(only_v2(desk, ids[1]).peer_left().rank() == 0);
  desk.say_bytes(ids[1], frame_v2("leave"));
  CHECK(desk.job_count() == 0);
}

TEST_CASE("workers of control protocol 2 set the learning rate, and continue at a new box") {
  Desk desk;
  const ConnectionId first = join_v2(desk, "join_adam_rank_0");
  const ConnectionId second = join_v2(desk, "join_adam_rank_1");
  REQUIRE(only_v2(desk, first).has_session());
  REQUIRE(only_v2(desk, second).has_session());
  desk.say_bytes(first, frame_v2("set_learning_rate"));
  CHECK(only_v2(desk, first).learning_rate_set().sequence() == 1);

  Desk other;
  const ConnectionId resuming[] = {join_v2(other, "join_resumes_rank_0"),
                                   join_v2(other, "join_resumes_rank_1")};
  for (const ConnectionId id : resuming) other.say_bytes(id, frame_v2("rounds"));
  for (const ConnectionId id : resuming) {
    const auto messages = take_v2(other, id);
    REQUIRE(messages.size() == 2);
    CHECK(messages[0].session().has_rounds());
    CHECK(messages[1].rounds().rounds(0) == 3);
  }
}

TEST_CASE("a box of control protocol 2 is answered what it asks") {
  Desk desk;
  REQUIRE(only_v2(desk, join_v2(desk, "ask_cut")).has_failure());  // the part is not here
  const ConnectionId id = join_v2(desk, "ask_state");
  CHECK(only_v2(desk, id).failure().code() == static_cast<uint32_t>(ErrorCode::kNotFound));
}

TEST_CASE("every frame of control protocol 2 is a message that this release reads") {
  for (const auto& frame : golden::kWorkerFramesV2) {
    INFO(frame.name);
    proto::WorkerMessage message;
    REQUIRE(message.ParseFromString(test::from_hexadecimal(frame.bytes)));
    CHECK(message.kind_case() != proto::WorkerMessage::KIND_NOT_SET);
    CHECK(message.SerializeAsString() == test::from_hexadecimal(frame.bytes));
    v2::WorkerMessage older;
    REQUIRE(older.ParseFromString(message.SerializeAsString()));
    CHECK(static_cast<int>(older.kind_case()) == static_cast<int>(message.kind_case()));
  }
}

TEST_CASE("ranks of two releases run one job as long as it uses nothing that one of them lacks") {
  Desk desk;
  const ConnectionId older = join_v2(desk, "join_rank_0");
  const ConnectionId newer = desk.join(join_of_this_release(1, wire::added_fields()));
  CHECK(only_v2(desk, older).session().protocol_version() == 2);
  const auto messages = desk.take(newer);
  REQUIRE(messages.size() == 1);
  CHECK(messages[0].session().protocol_version() == 3);
}

TEST_CASE("a rank whose version lacks a field of its job is refused by the field's name") {
  RegistryOptions options;
  options.added_fields = kNumericsIsNew;
  Desk desk(options);
  desk.join(join_of_this_release(1, kNumericsIsNew, 1));
  const ConnectionId older = join_v2(desk, "join_rank_0");
  const auto failure = desk.take_failure(older);
  CHECK(failure.code() == static_cast<uint32_t>(ErrorCode::kVersionMismatch));
  CHECK(
      failure.message() ==
      "job 'train' uses Join.numerics, which was added in control protocol 3, but rank 0 (libpbox "
      "0.1.0) speaks control protocol 2; use one release of libpbox on all ranks, or do without "
      "that option");
}

TEST_CASE("a rank that uses what a rank before it lacks is refused by the field's name") {
  RegistryOptions options;
  options.added_fields = kNumericsIsNew;
  Desk desk(options);
  join_v2(desk, "join_rank_0");
  const auto failure = desk.take_failure(desk.join(join_of_this_release(1, kNumericsIsNew, 1)));
  CHECK(failure.code() == static_cast<uint32_t>(ErrorCode::kVersionMismatch));
  CHECK_THAT(failure.message(), Contains("rank 1 of job 'train' uses Join.numerics") &&
                                    Contains("rank 0 (libpbox 0.1.0) speaks control protocol 2;"));
}

TEST_CASE("the parts of a job state the version that the job needs") {
  RegistryOptions options;
  options.added_fields = kNumericsIsNew;
  Desk desk(options);
  for (const uint32_t rank : {0u, 1u}) desk.join(join_of_this_release(rank, kNumericsIsNew, 1));
  const auto running = desk.registry().running("train");
  REQUIRE(running.has_value());
  CHECK(running->protocol_version == 3);
}

TEST_CASE("a message that needs a field unknown here is refused by the field's name") {
  Desk desk;
  auto message = join_of_this_release(0, wire::added_fields());
  message.add_needs("Join.compression");
  const auto failure = desk.take_failure(desk.join(message));
  CHECK(failure.code() == static_cast<uint32_t>(ErrorCode::kVersionMismatch));
  CHECK_THAT(failure.message(), Contains("uses Join.compression, which this box") &&
                                    Contains("upgrade the box, or do without that option"));
  const ConnectionId running = desk.start("job", 1)[0];
  auto heartbeat = proto::WorkerMessage();
  heartbeat.mutable_heartbeat();
  heartbeat.add_needs("WorkerMessage.pause");
  desk.say(running, heartbeat);
  CHECK_THAT(desk.take_failure(running).message(), Contains("WorkerMessage.pause"));
}

TEST_CASE("a worker of the next release is admitted with the version that both talk") {
  Desk desk;
  auto message = join_message("job", 0, 1);
  message.mutable_join()->set_protocol_version(3);
  message.set_newest_version(4);
  const auto messages = desk.take(desk.join(message));
  REQUIRE(messages.size() == 1);
  CHECK(messages[0].session().protocol_version() == 3);
}

TEST_CASE("a peer with which this box has no version in common is refused, whatever it asks") {
  std::map<std::string, proto::WorkerMessage> questions;
  questions["join"] = join_message("job", 0, 1);
  questions["map"].mutable_ask_part_map()->set_job("job");
  questions["state"].mutable_ask_state();
  questions["cut"].mutable_ask_cut();
  questions["report"].mutable_ask_report();
  for (auto& [name, question] : questions) {
    INFO(name);
    Desk desk;
    wire::state_versions(question);
    auto older = question;
    older.clear_newest_version();
    if (older.has_join()) older.mutable_join()->set_protocol_version(1);
    if (older.has_ask_part_map()) older.mutable_ask_part_map()->set_protocol_version(1);
    if (older.has_ask_state()) older.mutable_ask_state()->set_protocol_version(1);
    if (older.has_ask_cut()) older.mutable_ask_cut()->set_protocol_version(1);
    if (older.has_ask_report()) older.mutable_ask_report()->set_protocol_version(1);
    const auto failure = desk.take_failure(desk.join(older));
    CHECK(failure.code() == static_cast<uint32_t>(ErrorCode::kVersionMismatch));
    CHECK_THAT(failure.message(),
               Contains("speaks control protocol 1, this box") && Contains("speaks 2 to 3"));
  }
}

}  // namespace pbox::control
