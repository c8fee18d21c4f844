// The box's memory that workers on its host may read, and the workers' memory that the box reads.
#include <catch2/catch.hpp>

#include "tests/unit/appliance/control/registry_desk.h"

namespace pbox::control {
namespace {

// A job of two ranks at a box that offers lanes.
struct LanesJob {
  Desk desk;
  std::vector<ConnectionId> ids;
  std::vector<proto::Session> sessions;

  explicit LanesJob(const std::function<void(proto::Join&)>& adjust = {}, bool is_local = true) {
    desk.host().has_lanes = true;
    desk.from_own_host = is_local;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      ids.push_back(desk.join(message_of(rank, adjust)));
    }
    for (const ConnectionId id : ids) {
      for (const auto& message : desk.take(id)) {
        if (message.has_session()) sessions.push_back(message.session());
      }
    }
    REQUIRE(sessions.size() == 2);
  }
  static proto::WorkerMessage message_of(uint32_t rank,
                                         const std::function<void(proto::Join&)>& adjust = {}) {
    auto message = join_message("job", rank, 2);
    message.mutable_join()->set_incarnation(100 + rank);
    if (adjust) adjust(*message.mutable_join());
    return message;
  }

  // The seats that the box offers when the worker asks.
  const std::vector<PipelineHost::LaneSeat>& offer_to(ConnectionId id) {
    proto::WorkerMessage message;
    message.mutable_queue_pairs()->mutable_shared_memory();
    desk.say(id, message);
    CHECK(desk.host().offered.contains(id));
    return desk.host().offered[id];
  }
};

}  // namespace

TEST_CASE("a worker of the box's host may read the results of its own job, where they are") {
  LanesJob job;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    const auto& seats = job.offer_to(job.ids[rank]);
    REQUIRE(seats.size() == 2);
    for (uint32_t pipeline = 0; pipeline < 2; ++pipeline) {
      const pipeline::JobShard* shard = job.desk.host().shards(pipeline)[0];
      CHECK(seats[pipeline].pipeline == pipeline);
      CHECK(seats[pipeline].grant.spi ==
            job.sessions[rank].pipelines(static_cast<int>(pipeline)).spi());
      CHECK(seats[pipeline].grant.results == &shard->arena());
      CHECK(shard->arena().file().ok());
    }
  }
}

TEST_CASE("the memory that a worker may show has a bound, which grows with its job") {
  LanesJob job;
  const uint64_t small = job.offer_to(job.ids[0])[0].grant.memory_bytes_max;
  CHECK(small > 64u << 20);
  CHECK(small < 128u << 20);
  LanesJob large([](proto::Join& join) { join.mutable_tensors(0)->set_elements(1u << 20); });
  const uint64_t more = large.offer_to(large.ids[0])[0].grant.memory_bytes_max;
  CHECK(more - small > 2 * 4 * (1u << 20));  // inputs and outputs
}

TEST_CASE("memory is only shown where results stay until they are read") {
  const auto partial = [](proto::Join& join) {
    join.set_on_worker_lost(static_cast<uint32_t>(LostPolicy::kPartial));
  };
  LanesJob shrinking(partial);
  CHECK_FALSE(shrinking.desk.host().shards(0)[0]->arena().file().ok());
  LanesJob remote({}, false);
  CHECK_FALSE(remote.desk.host().shards(0)[0]->arena().file().ok());
  // The lanes themselves are offered all the same.
  CHECK(shrinking.offer_to(shrinking.ids[0]).size() == 2);
}

TEST_CASE("a process that takes a rank's place in a running job gets copies of results") {
  LanesJob job;
  job.desk.hang_up(job.ids[1]);
  auto message = LanesJob::message_of(1);
  message.mutable_join()->set_incarnation(7);
  message.mutable_join()->set_rejoins(true);
  const ConnectionId again = job.desk.join(message);
  CHECK(job.offer_to(again)[0].grant.results == nullptr);
  CHECK(job.offer_to(job.ids[0])[0].grant.results != nullptr);
}

}  // namespace pbox::control
