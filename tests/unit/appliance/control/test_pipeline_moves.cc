// Moves of chunks between the pipelines of one box.
#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "tests/unit/appliance/control/registry_desk.h"

namespace pbox::control::pipeline_moves_test {
namespace {

using Catch::Contains;

PartProgress only_part(Desk& desk) {
  const auto parts = desk.registry().pipeline_moves().progress();
  REQUIRE(parts.size() == 1);
  return parts[0];
}

// Moves all groups of job "train" to one pipeline.
Status move_all(Desk& desk, uint32_t pipeline) {
  const std::vector<uint32_t> groups(only_part(desk).group_pipelines.size(), pipeline);
  const Status moved = desk.registry().pipeline_moves().move("train", {{0, groups}}, "a test");
  desk.deliver();
  return moved;
}

// Joins the rank once more. It has consumed `rounds` rounds of each of the four chunks.
ConnectionId resume(Desk& desk, proto::WorkerMessage message, const proto::Session& session,
                    uint32_t rounds) {
  message.mutable_join()->set_resumes(true);
  message.mutable_join()->set_epoch(session.epoch());
  message.mutable_join()->set_generation(session.generation());
  message.mutable_join()->set_box(session.box());
  const ConnectionId id = desk.join(message);
  proto::WorkerMessage stated;
  for (int chunk = 0; chunk < 4; ++chunk) stated.mutable_rounds()->add_rounds(rounds);
  stated.mutable_rounds()->set_last(true);
  desk.say(id, stated);
  return id;
}

}  // namespace

TEST_CASE("groups of chunks have about the same size and are on the pipelines of their chunks") {
  JobSpec spec = spec_of(join_message("train", 0, 2));
  spec.tensors[0].elements = 1'000'000;
  const JobShards shards(spec, {.loads_bytes = {0, 0, 2'000'000}});
  const auto& groups = shards.group_pipelines();
  REQUIRE(groups.size() >= 23);
  REQUIRE(groups.size() <= 25);
  const auto on = [&](uint32_t pipeline) {
    return std::count(groups.begin(), groups.end(), pipeline);
  };
  // The third pipeline has less of this job, because it has others.
  CHECK(on(0) == on(1));
  CHECK(on(2) < on(0) / 2);
  for (const uint32_t pipeline : {0u, 1u, 2u}) {
    const auto share = static_cast<double>(shards.bytes_on(pipeline)) / 4e6;
    CHECK(static_cast<double>(on(pipeline)) / 24 == Approx(share).margin(0.03));
  }
}

TEST_CASE("groups that move take their bytes and their memory along") {
  const JobSpec spec = spec_of(join_message("train", 0, 2));
  JobShards shards(spec, {.loads_bytes = {0, 0}});
  const uint64_t bytes = shards.bytes_on(0) + shards.bytes_on(1);
  const std::vector<uint32_t> all(shards.group_pipelines().size(), 1);
  const auto footprints = shards.footprints_with(spec, all);
  CHECK(footprints[0] < shards.footprints()[0]);
  CHECK(footprints[1] > shards.footprints()[1]);
  shards.move_groups(spec, all);
  CHECK(shards.footprints() == footprints);
  CHECK(shards.bytes_on(0) == 0);
  CHECK(shards.bytes_on(1) == bytes);
  CHECK(shards.group_pipelines() == all);
  CHECK(std::set<uint8_t>(shards.chunk_pipeline().begin(), shards.chunk_pipeline().end()) ==
        std::set<uint8_t>{1});
  CHECK(shards.pipelines() == std::vector<uint32_t>{0, 1});
}

TEST_CASE("a part of several is one group, and moves to another pipeline as a whole") {
  JobSpec spec = spec_of(join_message("train", 0, 2));
  spec.part = 1;
  spec.parts = 4;
  JobShards shards(spec, {.loads_bytes = {0, 0, 0}, .pipeline = 2});
  REQUIRE(shards.group_pipelines() == std::vector<uint32_t>{2});
  const uint64_t bytes = shards.bytes_on(2);
  shards.move_groups(spec, {0});
  CHECK(shards.pipelines() == std::vector<uint32_t>{0});
  CHECK(shards.bytes_on(0) == bytes);
  CHECK(shards.bytes_on(2) == 0);
}

TEST_CASE("ranks of a part whose chunks move are told to come again, and find them elsewhere") {
  Desk desk({.box_name = "box"});
  std::vector<proto::Session> sessions;
  const auto ids = desk.start("train", 2, &sessions);
  REQUIRE(move_all(desk, 1));
  CHECK(desk.registry().pipeline_moves().is_gathering("train"));
  CHECK(desk.registry().pipeline_moves().progress().empty());
  CHECK(desk.registry().totals().parts_moved == 0);
  for (const ConnectionId id : ids) {
    const auto messages = desk.take(id);
    REQUIRE(messages.size() == 1);
    CHECK(messages[0].moved().box() == "box");
    CHECK(messages[0].moved().address().empty());
    CHECK(desk.is_closed(id));
  }
  std::vector<ConnectionId> again;
  for (const uint32_t rank : {0u, 1u}) {
    again.push_back(resume(desk, join_message("train", rank, 2), sessions[rank], 0));
  }
  for (const ConnectionId id : again) {
    const auto messages = desk.take(id);
    REQUIRE(messages.size() == 2);
    const auto& chunks = messages[0].session().chunk_pipeline();
    CHECK(std::set<char>(chunks.begin(), chunks.end()) == std::set<char>{1});
  }
  CHECK_FALSE(desk.registry().pipeline_moves().is_gathering("train"));
  CHECK(only_part(desk).group_pipelines[0] == 1);
  bool is_logged = false;
  for (const auto& event : desk.registry().take_events()) {
    is_logged = is_logged || (std::string(event.name) == "chunks_moved" &&
                              event.text.find("a test") != std::string::npos);
  }
  CHECK(is_logged);
}

TEST_CASE("weights and optimizer state move along") {
  Desk desk({.box_name = "box"});
  std::vector<ConnectionId> ids;
  std::vector<proto::Session> sessions;
  for (const uint32_t rank : {0u, 1u}) ids.push_back(desk.join(join_optimizing(rank)));
  for (const ConnectionId id : ids) sessions.push_back(desk.take(id).at(0).session());
  for (pipeline::Chunk* chunk : chunks_of(desk)) {
    chunk->rounds_finished = chunk->fanned_out_rounds = 5;
    std::fill_n(chunk->weights, chunk->elements, 3.0f);
    std::fill_n(chunk->optimizer_state, chunk->elements, 4.0f + static_cast<float>(chunk->id));
  }
  REQUIRE(move_all(desk, 0));
  ids.clear();
  for (const uint32_t rank : {0u, 1u}) {
    ids.push_back(resume(desk, join_optimizing(rank), sessions[rank], 5));
  }
  for (const ConnectionId id : ids) {
    const auto messages = desk.take(id);
    REQUIRE(messages.size() == 2);
    CHECK_FALSE(messages[0].session().optimizer_restarted());
    CHECK(messages[1].rounds().give().empty());
  }
  REQUIRE(desk.host().shards(0).size() == 1);
  CHECK(desk.host().shards(0)[0]->chunks().size() == 4);
  for (const pipeline::Chunk* chunk : chunks_of(desk)) {
    CHECK(chunk->rounds_finished == 5);
    CHECK(chunk->weights[0] == 3.0f);
    CHECK(chunk->optimizer_state[0] == 4.0f + static_cast<float>(chunk->id));
  }
}

TEST_CASE("chunks stay where they are if there is no room, or if their part must not move") {
  const JobSpec spec = spec_of(join_message("train", 0, 2));
  const JobShards shards(spec, {.loads_bytes = {0, 0}});
  const std::vector<uint32_t> all(shards.group_pipelines().size(), 0);
  const uint64_t wanted_bytes = shards.footprints_with(spec, all)[0];
  REQUIRE(wanted_bytes > shards.footprints()[0]);
  Desk desk({.box_name = "box", .arena_bytes = {wanted_bytes - 1, 1u << 30}});
  PipelineMoves& moves = desk.registry().pipeline_moves();
  SECTION("no room") {
    desk.start("train", 2);
    const Status moved = move_all(desk, 0);
    REQUIRE_FALSE(moved);
    CHECK(moved.error().code == ErrorCode::kResourceExhausted);
    CHECK_THAT(moved.error().message, Contains("pipeline 0"));
    CHECK(only_part(desk).ranks.size() == 2);
  }
  SECTION("its groups are others now") {
    desk.start("train", 2);
    CHECK(moves.move("train", {{0, {1}}}, "a test").error().code == ErrorCode::kUnavailable);
  }
  SECTION("a rank is away") {
    const auto ids = desk.start("train", 2);
    desk.hang_up(ids[1]);
    const Status moved = moves.move("train", {{0, {1, 1, 1, 1}}}, "a test");
    CHECK_THAT(moved.error().message, Contains("a rank is away"));
  }
  SECTION("the part is not here") {
    const Status moved = moves.move("train", {{0, {1}}}, "a test");
    CHECK_THAT(moved.error().message, Contains("part 0 of job 'train' is not on this box"));
  }
  SECTION("the job has recovery none") {
    auto message = join_message("train", 0, 1);
    message.mutable_join()->set_recovery(1);
    desk.join(message);
    CHECK(moves.progress().empty());
    CHECK_THAT(moves.move("train", {{0, {1, 1, 1, 1}}}, "a test").error().message,
               Contains("must stay"));
  }
}

TEST_CASE("chunks stay where they are if the copy of their state does not fit") {
  Desk desk({.box_name = "box"});
  for (const uint32_t rank : {0u, 1u}) desk.join(join_optimizing(rank));
  const uint64_t taken_bytes = desk.registry().memory_taken_bytes();
  const uint64_t copy_bytes = 3 * sizeof(float) * 20007;  // Adam: weights and two moments
  desk.registry().set_options(
      {.box_name = "box", .job_memory_bytes = taken_bytes + copy_bytes - 1});
  const Status moved = move_all(desk, 0);
  REQUIRE_FALSE(moved);
  CHECK(moved.error().code == ErrorCode::kResourceExhausted);
  CHECK_THAT(moved.error().message, Contains("a move of the chunks of job 'train'"));
  CHECK(only_part(desk).ranks.size() == 2);
  desk.registry().set_options({.box_name = "box", .job_memory_bytes = taken_bytes + copy_bytes});
  CHECK(move_all(desk, 0));
}

}  // namespace pbox::control::pipeline_moves_test
