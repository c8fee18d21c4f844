// Before all ranks have joined: who is admitted, who is refused, and why.
#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "appliance/control/part_memory.h"
#include "nic/wire/control_versions.h"
#include "tests/unit/appliance/control/registry_desk.h"

namespace pbox::control::job_registry_gather_test {
namespace {

using Catch::Contains;

uint32_t code(ErrorCode error) {
  return static_cast<uint32_t>(error);
}

// Returns the FAILURE of a JOIN. The JOIN must be refused, and its connection closed.
proto::Failure refused(Desk& desk, const proto::WorkerMessage& message) {
  const ConnectionId id = desk.join(message);
  CHECK(desk.is_closed(id));
  return desk.take_failure(id);
}

}  // namespace

TEST_CASE("a worker that asks before JOIN is told each data address, and may then join") {
  Desk desk({}, 3);
  desk.host().address = "10.7.0.1";
  const ConnectionId asker = desk.open();
  proto::WorkerMessage ask;
  ask.mutable_ask_data_addresses();
  desk.say(asker, ask);
  const auto answers = desk.take(asker);
  REQUIRE(answers.size() == 1);
  REQUIRE(answers[0].data_addresses().addresses_size() == 1);
  CHECK(answers[0].data_addresses().addresses(0) == "10.7.0.1");
  desk.say(asker, join_message("after-asking", 0, 1));
  const auto joined = desk.take(asker);
  REQUIRE(joined.size() == 1);
  CHECK(joined[0].session().pipelines_size() == 3);
}

TEST_CASE("a job that is complete waits for an epoch, says so once, and begins when there is one") {
  Desk desk;
  desk.epochs().away = true;
  const ConnectionId first = desk.join(join_message("job", 0, 2));
  const ConnectionId second = desk.join(join_message("job", 1, 2));
  desk.pass(3 * kSecond, {first, second});
  size_t said = 0;
  for (const auto& event : desk.registry().take_events()) {
    if (std::string(event.name) != "epoch_awaited") continue;
    ++said;
    CHECK_THAT(event.text, Contains("job 'job'") && Contains("epochs is away"));
  }
  CHECK(said == 1);
  CHECK(desk.host().shards(0).empty());
  desk.take(first);
  desk.take(second);
  desk.epochs().away = false;
  desk.pass(kSecond, {first, second});
  for (const ConnectionId id : {first, second}) {
    size_t sessions = 0;
    for (const auto& message : desk.take(id)) sessions += message.has_session();
    CHECK(sessions == 1);
  }
}

TEST_CASE("a job that waits for an epoch beyond its time to join fails with the reason") {
  Desk desk({.join_timeout_ns = 5 * kSecond});
  desk.epochs().away = true;
  const ConnectionId only = desk.join(join_message("job", 0, 1));
  desk.pass(4 * kSecond, {only});
  CHECK(desk.job_count() == 1);
  desk.pass(2 * kSecond, {only});
  CHECK(desk.job_count() == 0);
  bool failed = false;
  for (const auto& message : desk.take(only)) {
    if (!message.has_failure()) continue;
    failed = true;
    CHECK(message.failure().code() == code(ErrorCode::kUnavailable));
    CHECK_THAT(message.failure().message(), Contains("epochs is away"));
  }
  CHECK(failed);
}

TEST_CASE("when the last rank joins every rank gets its session, and not before") {
  Desk desk({.box_name = "box-7", .heartbeat_interval_ms = 250, .payload_crc = true});
  const ConnectionId first = desk.join(join_message("job", 1, 2));
  CHECK(desk.take(first).empty());
  CHECK(desk.host().shards(0).empty());
  const ConnectionId last = desk.join(join_message("job", 0, 2));
  std::set<uint32_t> spis;
  for (const ConnectionId id : {first, last}) {
    const auto messages = desk.take(id);
    REQUIRE(messages.size() == 1);
    REQUIRE(messages[0].has_session());
    const auto& session = messages[0].session();
    CHECK(session.protocol_version() == wire::kControlProtocolVersion);
    CHECK(session.box() == "box-7");
    CHECK(session.fragment_bytes() == limits::kFragmentBytesEthernet);
    CHECK(session.chunk_bytes() == limits::kChunkBytesDefault);
    CHECK(session.payload_crc());
    CHECK(session.heartbeat_interval_ms() == 250);
    CHECK(session.dead_after_ms() == 10'000);
    // 20000 floats are two whole chunks and a rest; 7 floats are one: 4 chunks over 2 pipelines.
    REQUIRE(session.chunk_pipeline().size() == 4);
    CHECK(std::set<char>(session.chunk_pipeline().begin(), session.chunk_pipeline().end()) ==
          std::set<char>{0, 1});
    REQUIRE(session.pipelines_size() == 2);
    for (int index = 0; index < 2; ++index) {
      CHECK(session.pipelines(index).udp_port() == 9542u + static_cast<uint32_t>(index));
      const uint32_t room = receivable_bytes(desk.host().info(0), session.fragment_bytes());
      CHECK(session.pipelines(index).credit_bytes() == credit_alone(room, 2));
      CHECK(spis.insert(session.pipelines(index).spi()).second);
    }
  }
  REQUIRE(desk.host().shards(0).size() == 1);
  CHECK(desk.host().shards(0)[0]->worker_count() == 2);
  CHECK(desk.host().shards(1).size() == 1);
  CHECK(desk.registry().views(desk.now_ns())[0].state == "running");
}

TEST_CASE("a session says how packets find each pipeline's queue, a shared RSS table once") {
  Desk desk({}, 4);
  const auto first = std::make_shared<nic::RssTable>(nic::RssTable{{1, 2, 3}, {0, 1}});
  const auto second = std::make_shared<nic::RssTable>(nic::RssTable{{9}, {1, 0, 1, 0}});
  desk.host().affinity = nic::QueueAffinity::kRssHash;
  desk.host().rss = {first, second, first, second};
  std::vector<proto::Session> sessions;
  desk.start("job", 1, &sessions);
  const proto::Session& session = sessions[0];
  REQUIRE(session.rss_tables_size() == 2);
  CHECK(session.rss_tables(0).key() == std::string("\1\2\3"));
  CHECK(session.rss_tables(1).queues_size() == 4);
  CHECK(session.rss_tables(1).queues(2) == 1);
  REQUIRE(session.pipelines_size() == 4);
  for (int index = 0; index < 4; ++index) {
    const auto pipeline = static_cast<uint32_t>(index);
    CHECK(session.pipelines(index).affinity() == 1);
    CHECK(session.pipelines(index).queue() == pipeline / 2);
    CHECK(session.pipelines(index).rss_table() == pipeline % 2);
  }
}

TEST_CASE("a session of pipelines that need no RSS carries no table") {
  Desk desk;
  desk.host().affinity = nic::QueueAffinity::kSourceTrial;
  std::vector<proto::Session> sessions;
  desk.start("job", 1, &sessions);
  CHECK(sessions[0].rss_tables_size() == 0);
  CHECK(sessions[0].pipelines(1).affinity() == 3);
}

TEST_CASE("the debug log gets who joined, where the chunks are, and every session") {
  Desk desk;
  desk.start("job", 2);
  std::map<std::string, std::vector<std::string>> texts;
  for (const auto& event : desk.registry().take_events()) {
    if (event.severity == RegistryEvent::Severity::kDebug) texts[event.name].push_back(event.text);
  }
  REQUIRE(texts["job_admitted"].size() == 1);
  CHECK_THAT(texts["job_admitted"][0],
             Contains("'job': 4 chunks of at most 32256 bytes; pipeline 0: 2 chunks, "));
  REQUIRE(texts["worker_joined"].size() == 2);
  CHECK_THAT(texts["worker_joined"][1], Contains("rank 1 of 2 (10.0.0.2:5000, path MTU 1500)"));
  REQUIRE(texts["session_installed"].size() == 2);
  CHECK_THAT(texts["session_installed"][0],
             Contains("rank 0 (10.0.0.1:5000); pipeline 0: spi ") && Contains("UDP port 9543"));
}

TEST_CASE("the narrowest path decides the fragment size of all") {
  Desk desk;
  auto jumbo = join_message("job", 0, 2);
  jumbo.mutable_join()->set_path_mtu(9000);
  desk.join(jumbo);
  const ConnectionId last = desk.join(join_message("job", 1, 2));
  const auto messages = desk.take(last);
  REQUIRE(messages.size() == 1);
  CHECK(messages[0].session().fragment_bytes() == 1408);
}

TEST_CASE("packets to IPv6 addresses of the box are smaller, whatever control goes over") {
  Desk desk;
  desk.host().address = "fd77::1";
  const auto messages = desk.take(desk.join(join_message("job", 0, 1)));
  REQUIRE(messages.size() == 1);
  const uint32_t bytes = messages[0].session().fragment_bytes();
  CHECK(bytes > 1280);
  CHECK(bytes + limits::kPacketOverheadBytes + 8 + 40 <= 1500);
}

TEST_CASE("a path that is too narrow ends the job for all and names the rank") {
  Desk desk;
  const ConnectionId first = desk.join(join_message("job", 0, 2));
  auto narrow = join_message("job", 1, 2);
  narrow.mutable_join()->set_path_mtu(300);
  const ConnectionId last = desk.join(narrow);
  for (const ConnectionId id : {first, last}) {
    const auto failure = desk.take_failure(id);
    CHECK_THAT(failure.message(),
               Contains("rank 1") && Contains("MTU of 300") && Contains("raise"));
    CHECK(desk.is_closed(id));
  }
  CHECK(desk.job_count() == 0);
  CHECK(desk.host().shards(0).empty());
}

TEST_CASE("a differing tensor list is refused with the first difference, and the others go on") {
  Desk desk;
  const ConnectionId first = desk.join(join_message("job", 0, 2));
  auto other = join_message("job", 1, 2);
  other.mutable_join()->mutable_tensors(1)->set_elements(8);
  const auto failure = refused(desk, other);
  CHECK(failure.code() == code(ErrorCode::kMismatch));
  CHECK_THAT(failure.message(), Contains("rank 1 of job 'job'") &&
                                    Contains("tensor 1 ('bias') elements: 8") && Contains("7"));
  CHECK_FALSE(desk.is_closed(first));
  CHECK(desk.take(first).empty());
  desk.join(join_message("job", 1, 2));
  CHECK(desk.take(first).at(0).has_session());
  CHECK(desk.registry().totals().joins_refused == 1);
}

TEST_CASE("a second worker of one rank is refused and told who holds it") {
  Desk desk;
  const ConnectionId first = desk.join(join_message("job", 0, 2));
  const auto failure = refused(desk, join_message("job", 0, 2));
  CHECK(failure.code() == code(ErrorCode::kAlreadyExists));
  CHECK_THAT(failure.message(), Contains("rank 0 of job 'job'") && Contains("10.0.0.1:5000"));
  CHECK_FALSE(desk.is_closed(first));
}

TEST_CASE("sizes and ranks that cannot be are refused before a job exists") {
  Desk desk;
  CHECK_THAT(refused(desk, join_message("job", 0, 0)).message(), Contains("world_size 0"));
  CHECK_THAT(refused(desk, join_message("job", 3, 3)).message(), Contains("rank 3"));
  CHECK(desk.job_count() == 0);
  CHECK(desk.registry().memory_taken_bytes() == 0);
}

namespace {

// Memory of the job of join_message() with one rank, on two pipelines.
uint64_t bytes_of_a_job() {
  Desk desk;
  desk.start("any", 1);
  return desk.registry().memory_taken_bytes();
}

}  // namespace

TEST_CASE("a job over the memory quota is refused with its size, before anything is allocated") {
  Desk desk({.job_memory_bytes = 100'000});
  const auto failure = refused(desk, join_message("large", 0, 1));
  CHECK(failure.code() == code(ErrorCode::kResourceExhausted));
  const auto spec = parse_join(join_message("large", 0, 1).join(), {});
  const uint64_t wanted = one_shard_bytes(*spec) + control_bytes(*spec);
  CHECK_THAT(failure.message(), Contains("'large' needs " + std::to_string(wanted)) &&
                                    Contains("hold 0 of the 100000") && Contains("job_share"));
  CHECK(desk.registry().memory_taken_bytes() == 0);
  CHECK(desk.host().shards(0).empty());
}

TEST_CASE("the memory quota counts all jobs, and a finished one gives its share back") {
  Desk desk({.job_memory_bytes = bytes_of_a_job() * 3 / 2});
  const auto ids = desk.start("one", 1);
  const uint64_t taken = desk.registry().memory_taken_bytes();
  CHECK(taken == bytes_of_a_job());
  CHECK_THAT(refused(desk, join_message("two", 0, 1)).message(),
             Contains("hold " + std::to_string(taken)));
  desk.say(ids[0], leave_message());
  CHECK(desk.registry().memory_taken_bytes() == 0);
  desk.start("two", 1);
}

TEST_CASE("a job whose part does not fit on one pipeline is refused, with where and how much") {
  const uint64_t room = bytes_of_a_job();  // pipeline 1 has room for one half of it
  Desk desk({.arena_bytes = {10 * room, room * 3 / 4}});
  desk.host().numa_node = 0;
  desk.start("one", 1);
  const auto failure = refused(desk, join_message("two", 0, 2));
  CHECK(failure.code() == code(ErrorCode::kResourceExhausted));
  CHECK_THAT(failure.message(),
             Contains("'two' needs ") && Contains("on pipeline 1 (NUMA node 0); ") &&
                 Contains(" of " + std::to_string(room * 3 / 4)) && Contains("job_share"));
  CHECK(desk.registry().totals().joins_refused == 1);
  CHECK(desk.host().shards(0).size() == 1);
}

TEST_CASE("a job that still gathers holds its part of each pipeline") {
  Desk desk({.arena_bytes = {10 * bytes_of_a_job(), bytes_of_a_job() * 3 / 4}});
  const ConnectionId first = desk.join(join_message("one", 0, 2));
  refused(desk, join_message("two", 0, 1));
  desk.hang_up(first);
  desk.start("two", 1);
}

TEST_CASE("jobs beyond jobs_max are refused") {
  Desk desk({.jobs_max = 2});
  desk.start("one", 1);
  desk.join(join_message("two", 0, 2));
  const auto failure = refused(desk, join_message("three", 0, 1));
  CHECK(failure.code() == code(ErrorCode::kResourceExhausted));
  CHECK_THAT(failure.message(), Contains("2 jobs") && Contains("max = 2"));
}

TEST_CASE("another protocol version is refused with both versions") {
  Desk desk;
  auto message = join_message("job", 0, 1);
  message.mutable_join()->set_protocol_version(99);
  const auto failure = refused(desk, message);
  CHECK(failure.code() == code(ErrorCode::kVersionMismatch));
  CHECK_THAT(failure.message(), Contains("a test") && Contains("protocol 99") &&
                                    Contains("speaks 2 to 3; upgrade the older"));
}

TEST_CASE("names from a refused worker cannot break the log's lines") {
  Desk desk;
  auto message = join_message("job", 0, 1);
  message.mutable_join()->set_protocol_version(99);
  message.mutable_join()->set_software("a\nb\x1b" + std::string(1000, 'x'));
  const std::string text = refused(desk, message).message();
  CHECK_THAT(text, Contains("(a?b?" + std::string(60, 'x') + ")"));
}

TEST_CASE("a body that is no message ends its connection with an explanation") {
  Desk desk;
  const ConnectionId id = desk.open();
  desk.say_bytes(id, std::string("GET / HTTP/1.1\r\n\r\n"));
  CHECK(desk.take_failure(id).code() == code(ErrorCode::kInvalidArgument));
  CHECK(desk.is_closed(id));
  CHECK(desk.registry().connection_count() == 0);
}

TEST_CASE("any message before JOIN ends its connection") {
  Desk desk;
  proto::WorkerMessage empty;
  for (const auto& message :
       {leave_message(), barrier_message(1), learning_rate_message(0.1f, 1), empty}) {
    const ConnectionId id = desk.open();
    desk.say(id, message);
    CHECK_THAT(desk.take_failure(id).message(), Contains("first message must be JOIN"));
    CHECK(desk.is_closed(id));
  }
}

TEST_CASE("a second JOIN on a connection ends it, and while gathering the rank is free again") {
  Desk desk;
  const ConnectionId id = desk.join(join_message("job", 0, 2));
  desk.say(id, join_message("job", 1, 2));
  CHECK_THAT(desk.take_failure(id).message(), Contains("joined already"));
  CHECK(desk.is_closed(id));
  desk.start("job", 2);
}

TEST_CASE("a connection that never joins is closed after the hello time-out") {
  Desk desk({.hello_timeout_ns = 2 * kSecond});
  const ConnectionId id = desk.open();
  desk.pass(2 * kSecond);
  CHECK_FALSE(desk.is_closed(id));
  desk.pass(kSecond);
  CHECK(desk.is_closed(id));
  const auto failure = desk.take_failure(id);
  CHECK(failure.code() == code(ErrorCode::kTimeout));
  CHECK_THAT(failure.message(), Contains("no JOIN within 2.0 s"));
}

TEST_CASE("when the join time-out passes the ranks that did join are told who did not") {
  Desk desk({.join_timeout_ns = 5 * kSecond});
  const ConnectionId zero = desk.join(join_message("job", 0, 4));
  const ConnectionId two = desk.join(join_message("job", 2, 4));
  desk.pass(5 * kSecond, {zero, two});
  CHECK_FALSE(desk.is_closed(zero));
  desk.pass(kSecond, {zero, two});
  for (const ConnectionId id : {zero, two}) {
    const auto failure = desk.take_failure(id);
    CHECK(failure.code() == code(ErrorCode::kTimeout));
    CHECK_THAT(failure.message(),
               Contains("job 'job'") && Contains("2 of 4 ranks") && Contains("ranks 1, 3"));
    CHECK(desk.is_closed(id));
  }
  CHECK(desk.job_count() == 0);
}

TEST_CASE("the first worker's own join time-out counts where it is shorter than the box's") {
  Desk desk({.join_timeout_ns = 60 * kSecond});
  auto message = join_message("job", 0, 2);
  message.mutable_join()->set_join_timeout_ms(1000);
  const ConnectionId id = desk.join(message);
  desk.pass(2 * kSecond, {id});
  CHECK_THAT(desk.take_failure(id).message(), Contains("rank 1"));
}

TEST_CASE("a join time-out that is longer than the box's is cut to it, and the message says so") {
  Desk desk({.join_timeout_ns = 5 * kSecond});
  auto message = join_message("job", 0, 2);
  message.mutable_join()->set_join_timeout_ms(UINT32_MAX);
  const ConnectionId id = desk.join(message);
  desk.pass(5 * kSecond, {id});
  CHECK_FALSE(desk.is_closed(id));
  desk.pass(kSecond, {id});
  CHECK_THAT(desk.take_failure(id).message(), Contains("rank 1") && Contains("join_timeout_s"));
}

TEST_CASE("a long list of missing ranks is cut short") {
  Desk desk({.join_timeout_ns = kSecond});
  const ConnectionId id = desk.join(join_message("job", 0, 20));
  desk.pass(2 * kSecond, {id});
  CHECK_THAT(desk.take_failure(id).message(),
             Contains("19 of 20") && Contains("ranks 1, 2, 3, 4, 5, 6, 7, 8 and 11 more"));
}

TEST_CASE("a connection that closes while the job gathers frees its rank") {
  Desk desk;
  const ConnectionId gone = desk.join(join_message("job", 0, 2));
  const ConnectionId stays = desk.join(join_message("job", 1, 2));
  CHECK(desk.take(stays).size() == 1);
  Desk other;
  const ConnectionId first = other.join(join_message("job", 0, 3));
  const ConnectionId second = other.join(join_message("job", 1, 3));
  other.hang_up(first);
  CHECK(other.take(second).empty());
  other.join(join_message("job", 0, 3));
  other.join(join_message("job", 2, 3));
  CHECK(other.take(second).at(0).has_session());
  CHECK(other.registry().totals().workers_lost == 0);
  CHECK_FALSE(desk.is_closed(gone));
}

TEST_CASE("a rank that leaves while the job gathers is free again") {
  Desk desk;
  const ConnectionId first = desk.join(join_message("job", 0, 2));
  const ConnectionId second = desk.join(join_message("job", 1, 3));
  CHECK(desk.is_closed(second));  // another world size
  const ConnectionId third = desk.join(join_message("three", 1, 3));
  const ConnectionId stays = desk.join(join_message("three", 2, 3));
  desk.say(third, leave_message());
  CHECK(desk.take(stays).empty());  // ranks without sessions are not told of it
  desk.join(join_message("three", 1, 3));
  desk.join(join_message("three", 0, 3));
  CHECK(desk.take(stays).at(0).has_session());
  CHECK_FALSE(desk.is_closed(first));
}

TEST_CASE("the last one to hang up while gathering takes the job along") {
  Desk desk;
  const ConnectionId only = desk.join(join_message("job", 0, 2));
  CHECK(desk.job_count() == 1);
  desk.hang_up(only);
  CHECK(desk.job_count() == 0);
  CHECK(desk.registry().memory_taken_bytes() == 0);
}

TEST_CASE("a gathering worker is not held to a heartbeat interval that it has not been told") {
  Desk desk({.dead_after_ns = 300 * kMilli, .heartbeat_interval_ms = 100});
  const ConnectionId id = desk.join(join_message("job", 0, 2));
  for (int second = 0; second < 5; ++second) {
    desk.pass(950 * kMilli);
    desk.pass(50 * kMilli, {id});  // libpbox sends one a second until its session says otherwise
  }
  CHECK_FALSE(desk.is_closed(id));
  desk.join(join_message("job", 1, 2));
  CHECK(desk.take(id).at(0).has_session());
}

TEST_CASE("a rank that waited long for the others is not declared dead when they arrive") {
  Desk desk({.dead_after_ns = 200 * kMilli, .hello_timeout_ns = 10 * kSecond});
  const ConnectionId early = desk.join(join_message("train", 0, 2));
  desk.pass(kSecond);  // workers without a session send one heartbeat a second
  const ConnectionId late = desk.join(join_message("train", 1, 2));
  REQUIRE(desk.take(early).size() == 1);
  REQUIRE(desk.take(late).size() == 1);
  desk.pass(150 * kMilli);
  CHECK_FALSE(desk.is_closed(early));
  desk.pass(150 * kMilli, {late});
  CHECK(desk.is_closed(early));
}

}  // namespace pbox::control::job_registry_gather_test
