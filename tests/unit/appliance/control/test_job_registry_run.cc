// From the last JOIN to the last LEAVE: losses, barriers, learning rates, credit, shutting down.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>

#include "nic/wire/tag.h"
#include "tests/unit/appliance/control/registry_desk.h"

namespace pbox::control::job_registry_run_test {
namespace {

using Catch::Contains;

uint32_t code(ErrorCode error) {
  return static_cast<uint32_t>(error);
}

// A worker's PULL: the packet that tells a pipeline where the worker is.
std::vector<std::byte> pull_packet(const proto::Session& session, int pipeline, uint32_t chunk) {
  const wire::PullPayload payload;
  wire::Header header;
  header.set_type(wire::PacketType::kPull);
  header.payload_bytes = sizeof(payload);
  header.spi = session.pipelines(pipeline).spi();
  header.packet_number = 1;
  header.epoch = session.epoch();
  header.generation = static_cast<uint16_t>(session.generation());
  header.chunk = chunk;
  const auto tag = wire::make_tag({}, header, reinterpret_cast<const std::byte*>(&payload));
  std::vector<std::byte> bytes(sizeof(header) + sizeof(payload) + tag.size());
  std::memcpy(bytes.data(), &header, sizeof(header));
  std::memcpy(bytes.data() + sizeof(header), &payload, sizeof(payload));
  std::memcpy(bytes.data() + sizeof(header) + sizeof(payload), tag.data(), tag.size());
  return bytes;
}

// Credits of the GRANTs waiting to be sent, by session number; empties the pipeline's queue.
std::map<uint32_t, uint32_t> take_grants(pipeline::Engine& engine) {
  std::map<uint32_t, uint32_t> grants;
  for (auto packets = engine.to_send(); !packets.empty(); packets = engine.to_send()) {
    for (const auto& packet : packets) {
      if (packet.header.type() != wire::PacketType::kGrant) continue;
      grants[packet.header.spi & ~wire::kSpiToWorker] =
          packet.header.credit * limits::kCreditUnitBytes;
    }
    engine.sent(packets.size());
  }
  return grants;
}

// Returns the bytes of the job's fragments that a pipeline's receive buffer holds.
uint32_t receive_room(Desk& desk, const proto::Session& session) {
  return receivable_bytes(desk.host().info(0), session.fragment_bytes());
}

}  // namespace

TEST_CASE("a job takes no reserved hugepages where its pipelines may not") {
  const auto probe = NumaArena::create(2u << 20, kAnyNumaNode);
  REQUIRE(probe);
  if (!probe->has_hugepages()) WARN("no free 2 MiB page here: nothing to check");
  Desk desk({}, 1);
  desk.host().hugepages = Hugepages::kNever;
  auto message = join_message("job", 0, 1);
  message.mutable_join()->mutable_tensors(0)->set_elements(300'000);  // 2.4 MB with both slots
  desk.join(message);
  REQUIRE(desk.host().shards(0).size() == 1);
  CHECK_FALSE(desk.host().shards(0)[0]->arena().has_hugepages());
}

TEST_CASE("a lost worker is waited for, then the others are told which rank it was") {
  Desk desk({.lost_timeout_ns = 3 * kSecond});
  const auto ids = desk.start("job", 3);
  desk.hang_up(ids[1], "connection reset by peer");
  CHECK(desk.registry().totals().workers_lost == 1);
  desk.pass(2900 * kMilli, ids);
  CHECK(desk.take(ids[0]).empty());
  CHECK(desk.registry().views(desk.now_ns())[0].workers[1].state == "lost");
  desk.pass(200 * kMilli, ids);
  for (const ConnectionId id : {ids[0], ids[2]}) {
    const auto failure = desk.take_failure(id);
    CHECK(failure.code() == code(ErrorCode::kWorkerLost));
    CHECK_THAT(failure.message(), Contains("job 'job'") && Contains("rank 1 (10.0.0.2:5000)") &&
                                      Contains("connection reset by peer"));
    CHECK(desk.is_closed(id));
  }
  CHECK(desk.job_count() == 0);
  CHECK(desk.host().shards(0).empty());
  CHECK(desk.registry().memory_taken_bytes() == 0);
  CHECK(desk.registry().totals().jobs_failed == 1);
  desk.start("job", 3);  // the box still serves
}

TEST_CASE("the job's own lost time-out wins over the box's") {
  Desk desk({.lost_timeout_ns = 60 * kSecond});
  auto message = join_message("job", 0, 2);
  message.mutable_join()->set_lost_timeout_ms(100);
  const ConnectionId first = desk.join(message);
  message.mutable_join()->set_rank(1);
  const ConnectionId second = desk.join(message);
  desk.take(first);
  desk.hang_up(second);
  desk.pass(200 * kMilli, {first});
  CHECK_THAT(desk.take_failure(first).message(), Contains("rank 1"));
}

TEST_CASE("the time in which the box stood still is not counted as a worker's silence") {
  RegistryOptions options;
  options.dead_after_ns = 2 * kSecond;
  Desk desk(options);
  const auto ids = desk.start("job", 2);
  desk.pass(kSecond);
  desk.stand_still(15 * kSecond);
  desk.pass(kSecond / 2);  // heartbeats that wait are read now
  CHECK_FALSE(desk.is_closed(ids[0]));
  desk.pass(kSecond, {ids[0]});  // but rank 1 sends none
  CHECK_FALSE(desk.is_closed(ids[0]));
  CHECK(desk.is_closed(ids[1]));
}

TEST_CASE("the time in which the box stood still is not counted against ranks that are awaited") {
  Desk desk({.join_timeout_ns = 10 * kSecond, .lost_timeout_ns = 10 * kSecond});
  const auto ids = desk.start("running", 2);
  desk.hang_up(ids[1]);
  const ConnectionId gathers = desk.join(join_message("gathering", 0, 2));
  desk.pass(9 * kSecond, {ids[0], gathers});
  desk.stand_still(15 * kSecond);
  desk.pass(kSecond / 2, {ids[0], gathers});
  CHECK(desk.take(ids[0]).empty());
  CHECK(desk.take(gathers).empty());
  desk.pass(kSecond, {ids[0], gathers});
  CHECK_THAT(desk.take_failure(ids[0]).message(), Contains("rank 1"));
  CHECK_THAT(desk.take_failure(gathers).message(), Contains("have not joined"));
}

TEST_CASE("a worker that falls silent is lost like one that closes") {
  Desk desk({.dead_after_ns = 2 * kSecond, .lost_timeout_ns = kSecond});
  const auto ids = desk.start("job", 2);
  desk.pass(1900 * kMilli, {ids[0]});
  CHECK_FALSE(desk.is_closed(ids[1]));
  desk.pass(300 * kMilli, {ids[0]});
  CHECK(desk.is_closed(ids[1]));
  CHECK(desk.take(ids[0]).empty());
  desk.pass(kSecond, {ids[0]});
  const auto failure = desk.take_failure(ids[0]);
  CHECK(failure.code() == code(ErrorCode::kWorkerLost));
  CHECK_THAT(failure.message(), Contains("rank 1") && Contains("silent for 2.0 s"));
}

TEST_CASE("a new process takes a lost rank's place only if it says so") {
  Desk desk;
  const auto ids = desk.start("job", 2);
  desk.hang_up(ids[1]);
  const ConnectionId again = desk.join(join_message("job", 1, 2));
  CHECK(desk.is_closed(again));
  CHECK_THAT(desk.take_failure(again).message(), Contains("rank 1") && Contains("was lost"));
}

TEST_CASE("a rank that leaves is announced, and the last one to leave frees memory and sessions") {
  Desk desk;
  std::vector<proto::Session> sessions;
  const auto ids = desk.start("job", 3, &sessions);
  proto::WorkerMessage leave = leave_message();
  leave.mutable_leave()->set_reason("its disk\nis full" + std::string(1000, '!'));
  desk.say(ids[1], leave);
  CHECK(desk.is_closed(ids[1]));
  for (const ConnectionId id : {ids[0], ids[2]}) {
    const auto messages = desk.take(id);
    REQUIRE(messages.size() == 1);
    REQUIRE(messages[0].has_peer_left());
    CHECK(messages[0].peer_left().rank() == 1);
    CHECK(messages[0].peer_left().reason() == "its disk?is full" + std::string(284, '!'));
    CHECK_FALSE(desk.is_closed(id));
  }
  const ConnectionId back = desk.join(join_message("job", 1, 3));
  CHECK_THAT(desk.take_failure(back).message(), Contains("has left"));
  desk.say(ids[0], leave_message());
  CHECK(desk.host().shards(0).size() == 1);
  desk.say(ids[2], leave_message());
  CHECK(desk.job_count() == 0);
  CHECK(desk.host().shards(0).empty());
  CHECK(desk.host().shards(1).empty());
  CHECK(desk.registry().memory_taken_bytes() == 0);
  CHECK(desk.registry().totals().jobs_finished == 1);
  CHECK(desk.registry().totals().jobs_failed == 0);
  // The sessions are free again: a job of one worker has the whole receive buffer's share.
  sessions.clear();
  desk.start("next", 1, &sessions);
  CHECK(sessions[0].pipelines(0).credit_bytes() ==
        credit_alone(receive_room(desk, sessions[0]), 1));
}

TEST_CASE("a barrier releases all when the last rank arrives, again and again") {
  Desk desk;
  const auto ids = desk.start("job", 3);
  for (uint64_t sequence = 1; sequence <= 3; ++sequence) {
    desk.say(ids[2], barrier_message(sequence));
    desk.say(ids[0], barrier_message(sequence));
    for (const ConnectionId id : ids) CHECK(desk.take(id).empty());
    desk.say(ids[1], barrier_message(sequence));
    for (const ConnectionId id : ids) {
      const auto messages = desk.take(id);
      REQUIRE(messages.size() == 1);
      REQUIRE(messages[0].has_barrier_released());
      CHECK(messages[0].barrier_released().sequence() == sequence);
    }
  }
}

TEST_CASE("a learning rate reaches every shard of its job only, and is confirmed to who asked") {
  Desk desk;
  const auto ids = desk.start("job", 2);
  desk.start("other", 1);
  desk.say(ids[1], learning_rate_message(0.375f, 42));
  for (uint32_t pipeline = 0; pipeline < 2; ++pipeline) {
    CHECK(desk.host().shards(pipeline)[0]->optimizer.learning_rate == 0.375f);
    CHECK(desk.host().shards(pipeline)[1]->optimizer.learning_rate != 0.375f);
  }
  CHECK(desk.take(ids[0]).empty());
  const auto messages = desk.take(ids[1]);
  REQUIRE(messages.size() == 1);
  CHECK(messages[0].learning_rate_set().sequence() == 42);
}

TEST_CASE("a learning rate that is no number is refused and changes nothing") {
  for (const float wrong : {-1.0f, NAN, INFINITY}) {
    Desk desk;
    const auto ids = desk.start("job", 1);
    const float before = desk.host().shards(0)[0]->optimizer.learning_rate;
    auto* shard = desk.host().shards(0)[0];
    const uint32_t other = desk.start("other", 1).size() == 1 ? 1 : 0;
    REQUIRE(other == 1);
    desk.registry().on_message(ids[0], learning_rate_message(wrong, 1).SerializeAsString(),
                               desk.now_ns());
    CHECK(shard->optimizer.learning_rate == before);
    const auto actions = desk.registry().take_actions();
    REQUIRE(actions.size() == 2);
    CHECK(actions[0].message.failure().code() == code(ErrorCode::kInvalidArgument));
    CHECK(actions[1].kind == Action::Kind::kClose);
  }
}

TEST_CASE("two jobs share the receive buffer, and who is there already is granted the new share") {
  Desk desk;
  std::vector<proto::Session> sessions;
  const auto one = desk.start("one", 2, &sessions);
  const uint32_t alone = credit_alone(receive_room(desk, sessions[0]), 2);
  CHECK(sessions[0].pipelines(0).credit_bytes() == alone);

  // Rank 0 has spoken to pipeline 0, so it can be reached there.
  const auto chunk = static_cast<uint32_t>(sessions[0].chunk_pipeline().find('\0'));
  auto bytes = pull_packet(sessions[0], 0, chunk);
  const nic::RxPacket packet{bytes.data(), static_cast<uint32_t>(bytes.size()),
                             *nic::parse_endpoint("10.0.0.1", 7000)};
  desk.host().engine(0).on_burst({&packet, 1}, desk.now_ns());
  take_grants(desk.host().engine(0));

  std::vector<proto::Session> others;
  const auto two = desk.start("two", 4, &others);
  const uint32_t shared = credit_alone(receive_room(desk, sessions[0]), 6);
  REQUIRE(shared < alone);
  for (const auto& session : others) CHECK(session.pipelines(1).credit_bytes() == shared);
  for (const auto* shard : desk.host().shards(0)) {
    for (const auto& session : shard->sessions()) CHECK(session.credit_bytes == shared);
  }
  const uint32_t spi = sessions[0].pipelines(0).spi();
  using Grants = std::map<uint32_t, uint32_t>;
  CHECK(take_grants(desk.host().engine(0)) == Grants{{spi, shared}});
  CHECK(take_grants(desk.host().engine(1)).empty());

  for (const ConnectionId id : two) desk.say(id, leave_message());
  CHECK(take_grants(desk.host().engine(0)) == Grants{{spi, alone}});
  CHECK_FALSE(desk.is_closed(one[0]));
}

TEST_CASE("shutting down tells every worker of every job that ends with it, gathering ones too") {
  Desk desk({.box_name = "box-7"});
  std::vector<ConnectionId> ids;
  for (const uint32_t rank : {0u, 1u}) {
    auto message = join_message("one", rank, 2);
    message.mutable_join()->set_recovery(1);
    ids.push_back(desk.join(message));
  }
  for (const ConnectionId id : ids) CHECK(desk.take(id).size() == 1);
  ids.push_back(desk.join(join_message("two", 0, 5)));
  desk.shut_down();
  for (const ConnectionId id : ids) {
    const auto failure = desk.take_failure(id);
    CHECK(failure.code() == code(ErrorCode::kBoxLost));
    CHECK_THAT(failure.message(), Contains("'box-7' is shutting down"));
    CHECK(desk.is_closed(id));
  }
  CHECK(desk.job_count() == 0);
  CHECK(desk.host().shards(0).empty());
}

TEST_CASE("shutting down leaves jobs that outlive the box without a word") {
  Desk desk;
  const auto ids = desk.start("one", 2);
  desk.shut_down();
  for (const ConnectionId id : ids) {
    CHECK(desk.take(id).empty());
    CHECK(desk.is_closed(id));
  }
  CHECK(desk.job_count() == 0);
}

TEST_CASE("a garbled message from a joined worker is its loss, not the others'") {
  Desk desk({.lost_timeout_ns = kSecond});
  const auto ids = desk.start("job", 2);
  desk.say_bytes(ids[1], std::string("\xff\xff\xff\xff", 4));
  CHECK(desk.is_closed(ids[1]));
  CHECK_FALSE(desk.is_closed(ids[0]));
  desk.pass(2 * kSecond, {ids[0]});
  CHECK_THAT(desk.take_failure(ids[0]).message(), Contains("rank 1"));
}

TEST_CASE("when every worker is lost nobody is left to wait, and the job ends at once") {
  Desk desk({.lost_timeout_ns = 60 * kSecond});
  const auto ids = desk.start("job", 2);
  desk.hang_up(ids[0]);
  CHECK(desk.job_count() == 1);
  desk.hang_up(ids[1]);
  CHECK(desk.job_count() == 0);
  CHECK(desk.registry().memory_taken_bytes() == 0);
  CHECK(desk.registry().totals().jobs_failed == 1);
}

TEST_CASE("a box without free sessions refuses the job that needs them, and takes none away") {
  Desk desk({}, 1);
  std::vector<std::vector<ConnectionId>> jobs;
  for (uint32_t index = 0; index < limits::kSessionsPerPipelineMax / 256; ++index) {
    jobs.push_back(desk.start("job" + std::to_string(index), 256));
  }
  const ConnectionId one_more = desk.join(join_message("more", 0, 1));
  const auto failure = desk.take_failure(one_more);
  CHECK(failure.code() == code(ErrorCode::kResourceExhausted));
  CHECK_THAT(failure.message(),
             Contains("sessions on pipeline 0") && Contains("no free session there"));
  for (const ConnectionId id : jobs[3]) desk.say(id, leave_message());
  desk.start("more", 1);
}

}  // namespace pbox::control::job_registry_run_test
