// Unsound values that pipelines have found: log events, and the end of jobs that reject them.
#include <catch2/catch.hpp>
#include <map>
#include <stdexcept>

#include "tests/unit/appliance/control/registry_desk.h"

namespace pbox::control::guard_watch_test {
namespace {

using Catch::Contains;

proto::WorkerMessage join_guarded(uint32_t rank, wire::Guard guard, float max_abs = 0) {
  auto message = join_message("train", rank, 3);
  message.mutable_join()->set_guard(static_cast<uint32_t>(guard));
  message.mutable_join()->set_guard_max_abs(max_abs);
  return message;
}

std::vector<ConnectionId> start(Desk& desk, wire::Guard guard, float max_abs = 0) {
  std::vector<ConnectionId> ids;
  for (const uint32_t rank : {0u, 1u, 2u}) {
    ids.push_back(desk.join(join_guarded(rank, guard, max_abs)));
  }
  for (const ConnectionId id : ids) REQUIRE(desk.take(id).size() == 1);
  desk.registry().take_events();
  return ids;
}

// Returns the log lines about unsound values since the last call.
std::vector<std::string> logged(Desk& desk) {
  std::vector<std::string> texts;
  for (const RegistryEvent& event : desk.registry().take_events()) {
    if (event.name == std::string("unsound_values")) texts.push_back(event.text);
  }
  return texts;
}

pipeline::JobShard& shard_with_chunk(Desk& desk, uint32_t chunk) {
  for (const uint32_t pipeline : {0u, 1u}) {
    for (pipeline::JobShard* shard : desk.host().shards(pipeline)) {
      if (shard->find(chunk) != nullptr) return *shard;
    }
  }
  throw std::logic_error("no shard has the chunk");
}

// Records an unsound value of the rank in the chunk, as the chunk's pipeline would.
void find(Desk& desk, uint32_t chunk, uint32_t rank, uint32_t round) {
  pipeline::JobShard& shard = shard_with_chunk(desk, chunk);
  shard.sessions()[rank].note_nonfinite(chunk, round, desk.now_ns());
}

}  // namespace

TEST_CASE("the log names the rank, the tensor and the round of an unsound value") {
  Desk desk;
  start(desk, wire::Guard::kFlag);
  find(desk, 0, 2, 7);
  desk.pass(kSecond, {1, 2, 3});
  CHECK(logged(desk) == std::vector<std::string>{
                            "job 'train': rank 2 pushed an infinity or a NaN in tensor 'weight', "
                            "round 7 (fragments since the last report: 1)"});
}

TEST_CASE("a rank whose values stay unsound is named once a minute, each rank by itself") {
  Desk desk;
  start(desk, wire::Guard::kZero, 0.5f);
  std::map<uint32_t, std::vector<uint32_t>> seconds_by_rank;
  for (uint32_t second = 0; second < 125; ++second) {
    find(desk, 0, 1, second);
    if (second == 30) find(desk, 0, 0, second);
    desk.pass(kSecond, {1, 2, 3});
    for (const std::string& text : logged(desk)) {
      CHECK_THAT(text, Contains("a value beyond guard_max_abs 0.5"));
      const bool is_first = text.find("rank 0 pushed") != std::string::npos;
      seconds_by_rank[is_first ? 0 : 1].push_back(second);
    }
  }
  CHECK(seconds_by_rank[0] == std::vector<uint32_t>{30});
  CHECK(seconds_by_rank[1] == std::vector<uint32_t>{0, 60, 120});
  CHECK(desk.job_count() == 1);
}

TEST_CASE("guard reject ends the job for all ranks, and names the rank that pushed the value") {
  Desk desk;
  const auto ids = start(desk, wire::Guard::kReject, 100);
  find(desk, 0, 1, 3);
  pipeline::JobShard& shard = shard_with_chunk(desk, 0);
  shard.reject(shard.sessions()[1]);
  desk.pass(kSecond, {1, 2, 3});
  for (const ConnectionId id : ids) {
    const auto failure = desk.take_failure(id);
    CHECK(failure.code() == static_cast<uint32_t>(ErrorCode::kInvalidArgument));
    CHECK_THAT(failure.message(),
               Contains("job 'train': rank 1 pushed an infinity, a NaN or a value beyond "
                        "guard_max_abs 100 in tensor 'weight', round 3") &&
                   Contains("set guard zero or flag"));
  }
  CHECK(desk.job_count() == 0);
  CHECK(logged(desk).size() == 1);
}

}  // namespace pbox::control::guard_watch_test
