// Parts of jobs: several on one box, and parts that are at another box or go there.
#include <catch2/catch.hpp>
#include <set>

#include "nic/wire/control_versions.h"
#include "tests/unit/appliance/control/registry_desk.h"

namespace pbox::control::job_registry_parts_test {
namespace {

using Catch::Contains;

proto::WorkerMessage join_part(uint32_t part, uint32_t rank, uint32_t parts = 4) {
  auto message = join_message("train", rank, 2);
  message.mutable_join()->set_part(part);
  message.mutable_join()->set_parts(parts);
  return message;
}

proto::PartPlace place(const std::string& box) {
  proto::PartPlace place;
  place.set_box(box);
  place.set_address("10.0.0.8:9541");
  return place;
}

std::vector<ConnectionId> start_part(Desk& desk, uint32_t part,
                                     std::vector<proto::Session>* sessions = nullptr) {
  const std::vector<ConnectionId> ids = {desk.join(join_part(part, 0)),
                                         desk.join(join_part(part, 1))};
  for (const ConnectionId id : ids) {
    const auto messages = desk.take(id);
    REQUIRE(messages.size() == 1);
    REQUIRE(messages[0].has_session());
    if (sessions != nullptr) sessions->push_back(messages[0].session());
  }
  return ids;
}

void require_moved(Desk& desk, ConnectionId id, const std::string& box) {
  const auto messages = desk.take(id);
  REQUIRE(messages.size() == 1);
  REQUIRE(messages[0].has_moved());
  CHECK(messages[0].moved().box() == box);
  CHECK(messages[0].moved().address() == "10.0.0.8:9541");
  CHECK(desk.is_closed(id));
}

proto::WorkerMessage ask_part_map(uint32_t version = wire::kControlProtocolVersion) {
  proto::WorkerMessage message;
  message.mutable_ask_part_map()->set_protocol_version(version);
  message.mutable_ask_part_map()->set_job("train");
  message.mutable_ask_part_map()->set_software("a test");
  return message;
}

}  // namespace

TEST_CASE("parts of a job that are on one pipeline share a rank's window there") {
  Desk desk;
  desk.host().receive_buffer_bytes = 6u << 20;
  std::vector<proto::Session> sessions;
  const auto credit_of = [&](const std::string& job) {
    std::set<uint32_t> credit;
    for (uint32_t pipeline = 0; pipeline < 2; ++pipeline) {
      for (const pipeline::JobShard* shard : desk.host().shards(pipeline)) {
        if (shard->name != job) continue;
        for (const auto& session : shard->sessions()) credit.insert(session.credit_bytes);
      }
    }
    REQUIRE(credit.size() == 1);
    return *credit.begin();
  };
  for (const uint32_t part : {0u, 1u}) start_part(desk, part, &sessions);
  CHECK(sessions[2].pipelines(0).credit_bytes() == 1u << 20);
  start_part(desk, 2, &sessions);
  start_part(desk, 3, &sessions);
  CHECK(sessions[6].pipelines(0).credit_bytes() == 1u << 19);
  CHECK(credit_of("train") == 1u << 19);
  desk.start("other", 2);
  // The receive buffer does not hold all windows now, so the ranks share it. A rank of "train"
  // divides its share between two parts, so each part has the credit of one of eight sessions.
  const uint32_t room = receivable_bytes(desk.host().info(0), sessions[0].fragment_bytes());
  const uint32_t of_part = credit_alone(room, 8, kWindowBytes / 2);
  CHECK(credit_of("train") == of_part);
  CHECK(of_part < 1u << 19);
  CHECK(credit_of("other") == credit_alone(room, 4));
}

TEST_CASE(
    "parts of a job are side by side on a box, each on a pipeline, and are shown as one job") {
  Desk desk;
  std::vector<proto::Session> sessions;
  start_part(desk, 1, &sessions);
  start_part(desk, 3, &sessions);
  for (const auto& session : sessions) {
    CHECK(session.pipelines_size() == 1);
    CHECK(session.chunk_pipeline() == std::string(session.chunk_pipeline().size(), '\0'));
  }
  CHECK(sessions[0].pipelines(0).udp_port() != sessions[2].pipelines(0).udp_port());
  CHECK(sessions[0].epoch() != sessions[2].epoch());
  const auto views = desk.registry().views(desk.now_ns());
  REQUIRE(views.size() == 1);
  CHECK(views[0].name == "train");
  CHECK(views[0].part_count == 4);
  CHECK(views[0].parts == std::vector<uint32_t>{1, 3});
  CHECK(views[0].element_count == 2 * 20007);
  CHECK(views[0].state == "running");
  CHECK(views[0].memory_bytes == desk.registry().memory_taken_bytes());
}

TEST_CASE("a job's parts count as one job") {
  Desk desk({.jobs_max = 1});
  start_part(desk, 0);
  start_part(desk, 1);
  const ConnectionId other = desk.join(join_message("other", 0, 1));
  CHECK_THAT(desk.take_failure(other).message(), Contains("serves 1 jobs already"));
}

TEST_CASE("a part of none, or of more than there may be, is refused") {
  Desk desk;
  CHECK_THAT(desk.take_failure(desk.join(join_part(4, 0))).message(), Contains("part 4 of 4"));
  CHECK_THAT(desk.take_failure(desk.join(join_part(0, 0, limits::kPartsPerJobMax + 1))).message(),
             Contains("at most 256 parts"));
}

TEST_CASE(
    "a rank that joins a moved part is redirected; one that joins an unknown part asks again") {
  Desk desk;
  desk.parts.moved[{"train", 2}] = place("eight");
  require_moved(desk, desk.join(join_part(2, 0)), "eight");
  CHECK(desk.job_count() == 0);
  desk.parts.unknown = Error{ErrorCode::kUnavailable, "not heard of yet"};
  const auto failure = desk.take_failure(desk.join(join_part(1, 0)));
  CHECK(failure.code() == static_cast<uint32_t>(ErrorCode::kUnavailable));
}

TEST_CASE("a part that goes elsewhere ends here at once, and leaves the others alone") {
  Desk desk;
  const auto going = start_part(desk, 1);
  const auto staying = start_part(desk, 2);
  desk.parts.moved[{"train", 1}] = place("eight");
  desk.registry().on_parts_changed();
  desk.deliver();
  for (const ConnectionId id : going) require_moved(desk, id, "eight");
  for (const ConnectionId id : staying) CHECK(desk.take(id).empty());
  CHECK(desk.registry().totals().parts_moved == 1);
  CHECK(desk.registry().totals().workers_lost == 0);
  CHECK(desk.registry().views(desk.now_ns())[0].parts == std::vector<uint32_t>{2});
  // The part comes back. As after the loss of a box, its workers state what they have consumed.
  desk.parts.moved.clear();
  auto returning = join_part(1, 0);
  returning.mutable_join()->set_resumes(true);
  returning.mutable_join()->set_epoch(1);
  desk.join(returning);
  CHECK(desk.registry().views(desk.now_ns())[0].state == "recovering");
}

TEST_CASE("a job's counters do not fall when one of its parts goes, and vanish with its last") {
  Desk desk;
  start_part(desk, 1);
  for (pipeline::JobShard* shard : desk.host().shards(0)) {
    shard->sessions()[1].bytes_received.add(1000);
    shard->sessions()[1].last_arrivals.add(3);
  }
  start_part(desk, 2);
  const auto counts = [&desk] {
    const auto views = desk.registry().views(desk.now_ns());
    REQUIRE(views.size() == 1);
    const auto& worker = views[0].workers.at(1);
    return std::pair(worker.bytes_received, worker.last_arrivals);
  };
  const auto before = counts();
  REQUIRE(before == std::pair<uint64_t, uint64_t>(1000, 3));
  desk.parts.moved[{"train", 1}] = place("eight");
  desk.registry().on_parts_changed();
  CHECK(counts() == before);
  // The part comes back, and counts from zero on top of what it had.
  desk.parts.moved.clear();
  start_part(desk, 1);
  CHECK(counts() == before);

  for (const uint32_t part : {1u, 2u}) desk.parts.moved[{"train", part}] = place("eight");
  desk.registry().on_parts_changed();
  CHECK(desk.job_count() == 0);
  desk.parts.moved.clear();
  start_part(desk, 1);
  CHECK(counts() == std::pair<uint64_t, uint64_t>(0, 0));
}

TEST_CASE("a part that is still gathering goes too, one that cannot go on elsewhere stays") {
  Desk desk;
  const ConnectionId early = desk.join(join_part(1, 0));
  auto fixed = join_part(2, 0);
  fixed.mutable_join()->set_recovery(static_cast<uint32_t>(Recovery::kNone));
  const ConnectionId bound = desk.join(fixed);
  desk.parts.moved[{"train", 1}] = desk.parts.moved[{"train", 2}] = place("eight");
  desk.registry().on_parts_changed();
  desk.deliver();
  require_moved(desk, early, "eight");
  CHECK_FALSE(desk.is_closed(bound));
  CHECK(desk.parts.moved.contains({"train", 1}));
  CHECK_FALSE(desk.parts.moved.contains({"train", 2}));
}

TEST_CASE(
    "where ranks may be at another box, those that are left go on if they are the greater half") {
  for (const bool others : {true, false}) {
    for (const uint32_t lost : {1u, 2u}) {
      Desk desk({.lost_timeout_ns = kSecond});
      desk.parts.others = others;
      std::vector<ConnectionId> ids;
      for (uint32_t rank = 0; rank < 3; ++rank) {
        auto message = join_message("train", rank, 3);
        message.mutable_join()->set_on_worker_lost(1);
        ids.push_back(desk.join(message));
      }
      for (const ConnectionId id : ids) desk.take(id);
      for (uint32_t rank = 3 - lost; rank < 3; ++rank) desk.hang_up(ids[rank]);
      desk.pass(2 * kSecond, {ids[0], ids[1]});
      const bool goes_on = lost == 1 || !others;
      CAPTURE(others, lost);
      CHECK(desk.is_closed(ids[0]) == !goes_on);
      CHECK(desk.registry().totals().workers_excluded == (goes_on ? lost : 0));
      if (goes_on) continue;
      CHECK_THAT(desk.take_failure(ids[0]).message(), Contains("are not a majority"));
    }
  }
}

TEST_CASE("a worker that asks for the part map is answered once it is known, if still connected") {
  Desk desk;
  const ConnectionId patient = desk.open();
  const ConnectionId gone = desk.open();
  desk.say(patient, ask_part_map());
  desk.say(gone, ask_part_map());
  REQUIRE(desk.parts.answers.size() == 2);
  CHECK(desk.parts.questions[0].job() == "train");
  CHECK(desk.take(patient).empty());
  desk.hang_up(gone);
  proto::PartMap plan;
  plan.add_parts()->set_box("eight");
  desk.parts.answers[0](plan);
  desk.parts.answers[1](plan);
  desk.deliver();
  const auto answer = desk.take(patient);
  REQUIRE(answer.size() == 1);
  CHECK(answer[0].part_map().parts(0).box() == "eight");
  CHECK_FALSE(desk.is_closed(patient));

  const ConnectionId refused = desk.open();
  desk.say(refused, ask_part_map());
  desk.parts.answers[2](Error{ErrorCode::kUnavailable, "etcd is away"});
  desk.deliver();
  CHECK(desk.take_failure(refused).message() == "etcd is away");
  const ConnectionId old = desk.open();
  desk.say(old, ask_part_map(1));
  CHECK_THAT(desk.take_failure(old).message(), Contains("speaks control protocol 1, this box"));
}

TEST_CASE("a name that no job can have makes no part map") {
  Desk desk;
  for (const std::string& name :
       {std::string(), std::string(limits::kJobNameBytesMax + 1, 'x'), std::string(1 << 19, 'x'),
        std::string("a b"), std::string("a\"b"), std::string("../\n")}) {
    const ConnectionId id = desk.open();
    auto question = ask_part_map();
    question.mutable_ask_part_map()->set_job(name);
    desk.say(id, question);
    CHECK_THAT(desk.take_failure(id).message(), Contains("job name"));
    CHECK(desk.is_closed(id));
  }
  CHECK(desk.parts.questions.empty());
}

TEST_CASE("a part that has no room here is handed to another box, whose ranks ask again") {
  Desk desk({.box_name = "full", .job_memory_bytes = 1000});
  SECTION("there is another box") {
    desk.parts.others = true;
    const ConnectionId id = desk.join(join_part(2, 0));
    const auto failure = desk.take_failure(id);
    CHECK(failure.code() == static_cast<uint32_t>(ErrorCode::kUnavailable));
    CHECK_THAT(failure.message(), Contains("[memory] job_share") && Contains("try again"));
  }
  SECTION("there is none") {
    const auto failure = desk.take_failure(desk.join(join_part(2, 0)));
    CHECK(failure.code() == static_cast<uint32_t>(ErrorCode::kResourceExhausted));
  }
  CHECK(desk.parts.handed_back == std::vector<std::pair<std::string, uint32_t>>{{"train", 2}});
}

TEST_CASE("a box reports its jobs, its room, and what a part that runs here takes") {
  Desk desk({.box_name = "box", .jobs_max = 3, .job_memory_bytes = 1u << 30});
  CHECK(desk.registry().report().memory_free_bytes() == 1u << 30);
  CHECK(desk.registry().report().jobs_free() == 3);
  desk.join(join_message("gathers", 0, 2));
  start_part(desk, 1);
  start_part(desk, 3);
  const ConnectionId id = desk.open();
  proto::WorkerMessage question;
  question.mutable_ask_report()->set_protocol_version(wire::kControlProtocolVersion);
  desk.say(id, question);
  const auto messages = desk.take(id);
  REQUIRE(messages.size() == 1);
  REQUIRE(messages[0].has_report());
  const proto::BoxReport& report = messages[0].report();
  REQUIRE(report.jobs_size() == 2);
  CHECK(report.jobs(0) == "gathers");
  CHECK(report.jobs(1) == "train");
  CHECK(report.jobs_free() == 1);
  CHECK(report.memory_free_bytes() == (1u << 30) - desk.registry().memory_taken_bytes());
  CHECK_FALSE(desk.registry().running("gathers"));
  const auto running = desk.registry().running("train");
  REQUIRE(running);
  CHECK(running->may_move);
  CHECK((running->part_memory_bytes > 0 &&
         running->part_memory_bytes <= desk.registry().memory_taken_bytes() / 2));
}

TEST_CASE("progress of ranks is reported by part, for parts that may move") {
  Desk desk;
  const auto first = start_part(desk, 1);
  start_part(desk, 3);
  proto::WorkerMessage message;
  auto& finished = *message.mutable_heartbeat()->mutable_finished();
  finished.set_rounds(7);
  finished.set_at_ns(900);
  finished.set_busy_ns(40);
  desk.say(first[1], message);
  const auto parts = desk.registry().pipeline_moves().progress();
  REQUIRE(parts.size() == 2);
  CHECK(parts[0].job == "train");
  CHECK(parts[0].part == 1);
  CHECK(parts[0].part_count == 4);
  CHECK(parts[0].bytes > 0);
  REQUIRE(parts[0].ranks.size() == 2);
  CHECK(parts[0].ranks[0] == RankProgress{});
  CHECK(parts[0].ranks[1] == RankProgress{7, 900, 40});
  CHECK(parts[1].part == 3);
  CHECK(parts[1].ranks[1] == RankProgress{});
}

}  // namespace pbox::control::job_registry_parts_test
