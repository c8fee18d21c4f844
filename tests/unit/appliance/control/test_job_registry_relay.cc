// Jobs whose sums go on to another box: when they start, what ends them, and that the relay ends
// before their memory is freed. The test stands in for the other box.
#include <catch2/catch.hpp>

#include "appliance/control/job_relay.h"
#include "tests/unit/appliance/control/registry_desk.h"

namespace pbox::control::job_registry_relay_test {
namespace {

using Catch::Contains;

// The record of a relay, which outlives the relay.
struct RelayLog {
  RelaySpec spec;
  std::function<void(Status)> on_change;
  RelayView view{.box = "10.0.0.9:9541", .rank = 1, .racks = 2};
  uint32_t lane_count = 1;
  std::vector<RelayLane> lanes;
  std::vector<std::vector<int32_t>> priorities;  // by chunk, as they were set
  std::string reason;
  bool is_gone = false;
  size_t shards_when_gone = 0;
};

class TestUpstream : public Upstream {
 public:
  std::unique_ptr<Relay> join(RelaySpec spec, std::function<void(Status)> on_change) override {
    logs.push_back(std::make_unique<RelayLog>());
    logs.back()->spec = std::move(spec);
    logs.back()->on_change = std::move(on_change);
    return std::make_unique<TestRelay>(*this, *logs.back());
  }

  std::vector<std::unique_ptr<RelayLog>> logs;
  SynchronousHost* host = nullptr;

 private:
  class TestRelay : public Relay {
   public:
    TestRelay(TestUpstream& upstream, RelayLog& log) : upstream_(upstream), log_(log) {}
    ~TestRelay() override {
      log_.is_gone = true;
      log_.shards_when_gone = upstream_.host->shards(0).size();
    }
    void seed(std::vector<std::vector<float>>) override {
      FAIL("seed() was called, but nothing may be seeded");
    }
    void run(std::vector<RelayLane> lanes) override { log_.lanes = std::move(lanes); }
    void set_priorities(std::vector<int32_t> by_chunk) override {
      log_.priorities.push_back(std::move(by_chunk));
    }
    RelayView view() const override { return log_.view; }
    void set_reason(const std::string& reason) override { log_.reason = reason; }
    uint32_t lane_count() const override { return log_.lane_count; }
    uint8_t lane_of(uint32_t chunk) const override {
      return uplink_lanes(log_.spec, log_.lane_count).at(chunk);
    }

   private:
    TestUpstream& upstream_;
    RelayLog& log_;
  };
};

struct Rack {
  TestUpstream upstream;
  Desk desk{{}, 2, nullptr, &upstream};

  Rack() { upstream.host = &desk.host(); }
  void tell(RelayLog& log, const Status& status) {
    if (status) {
      log.view.is_joined = true;
      log.view.workers = 5;
    }
    log.on_change(status);
    desk.deliver();
  }
};

}  // namespace

TEST_CASE("a relayed job starts when its ranks are here and the other racks are in") {
  Rack rack;
  const auto first = rack.desk.join(join_message("train", 0, 2));
  CHECK(rack.upstream.logs.empty());
  const auto second = rack.desk.join(join_message("train", 1, 2));
  REQUIRE(rack.upstream.logs.size() == 1);
  RelayLog& log = *rack.upstream.logs[0];
  CHECK(log.spec.job == "train");
  CHECK(log.spec.workers == 2);
  const auto view = rack.desk.registry().views(rack.desk.now_ns()).at(0);
  REQUIRE(view.upstream);
  CHECK_FALSE(view.upstream->is_joined);
  REQUIRE(log.spec.chunks.size() == view.chunk_count);
  CHECK(log.spec.chunks[0].name == "weight[0]");
  uint64_t elements = 0;
  for (const RelayedChunk& chunk : log.spec.chunks) elements += chunk.elements;
  CHECK(elements == 20'007);
  rack.desk.pass(3 * kSecond, {first, second});
  CHECK(rack.desk.take(first).empty());

  rack.tell(log, ok_status());
  CHECK(rack.desk.take(first).at(0).session().workers() == 5);
  CHECK(rack.desk.take(second).at(0).session().workers() == 5);
  REQUIRE(log.lanes.size() == 2);
  CHECK(log.lanes[0].uplink == rack.desk.host().shards(0).at(0)->uplinks.at(0).get());
  CHECK(rack.upstream.logs.size() == 1);

  for (const auto rank : {first, second}) rack.desk.say(rank, leave_message());
  CHECK(log.is_gone);
  CHECK(log.shards_when_gone == 1);  // the relay ended before its shards were freed
  CHECK(rack.desk.job_count() == 0);
}

TEST_CASE("means divide by the workers that the ranks stand for, if these are boxes") {
  Desk desk;
  std::vector<ConnectionId> racks;
  for (const uint32_t rank : {0u, 1u}) {
    auto message = join_message("train", rank, 2);
    message.mutable_join()->set_reduction(1);
    message.mutable_join()->set_workers(3 + rank);
    racks.push_back(desk.join(message));
  }
  for (const ConnectionId rack : racks) CHECK(desk.take(rack).at(0).session().workers() == 7);
  CHECK(desk.host().shards(0).at(0)->workers == 7);
  auto message = join_message("other", 0, 1);
  message.mutable_join()->set_workers(1u << 30);
  CHECK_THAT(desk.take_failure(desk.join(message)).message(),
             Contains("rank 0 states 1073741824 workers"));
}

TEST_CASE("each pipeline's sums take a lane of their own if there are as many lanes") {
  Rack rack;
  auto message = join_message("train", 0, 1);
  message.mutable_join()->mutable_tensors(0)->set_elements(100'000);
  rack.desk.join(message);
  REQUIRE(rack.upstream.logs.size() == 1);
  RelayLog& log = *rack.upstream.logs[0];
  log.lane_count = 2;
  rack.tell(log, ok_status());
  REQUIRE(log.lanes.size() == 4);  // each pipeline has a ring for each lane
  for (const uint32_t pipeline : {0u, 1u}) {
    const auto& chunks = rack.desk.host().shards(pipeline).at(0)->chunks();
    CHECK(chunks.size() >= 6);
    for (const auto& chunk : chunks) CHECK(chunk.up.lane == pipeline);
    for (const uint32_t lane : {0u, 1u}) {
      const RelayLane& ring = log.lanes[2 * pipeline + lane];
      CHECK(ring.lane == lane);
      CHECK(ring.uplink == rack.desk.host().shards(pipeline).at(0)->uplinks.at(lane).get());
    }
  }
}

TEST_CASE("the lanes of chunks are the same on all racks, and carry about the same") {
  RelaySpec relay;
  for (const uint32_t elements : {8064u, 8064u, 100u, 8064u, 8064u, 8064u, 3000u}) {
    relay.chunks.push_back({.name = "x", .elements = elements});
  }
  CHECK(uplink_lanes(relay, 1) == std::vector<uint8_t>(7, 0));
  CHECK(uplink_lanes(relay, 2) == std::vector<uint8_t>{0, 1, 1, 0, 1, 0, 1});
}

TEST_CASE("relayed tensors have the priorities of their registration, and none with fifo") {
  constexpr uint32_t kExplicit = 0, kFifo = 2;
  for (const uint32_t policy : {kExplicit, kFifo}) {
    Rack rack;
    auto message = join_message("train", 0, 1);
    message.mutable_join()->mutable_tensors(0)->set_priority(7);
    message.mutable_join()->set_priority_policy(policy);
    rack.desk.join(message);
    REQUIRE(rack.upstream.logs.size() == 1);
    CHECK(rack.upstream.logs[0]->spec.chunks[0].priority == (policy == kFifo ? 0 : 7));
  }
}

TEST_CASE("priorities that are learned or changed are passed on, as by chunk of the job") {
  constexpr uint32_t kExplicit = 0, kForwardOrder = 1, kFifo = 2;
  Rack rack;
  auto message = join_message("train", 0, 1);
  message.mutable_join()->mutable_tensors(0)->set_priority(7);
  message.mutable_join()->set_priority_policy(kForwardOrder);
  const auto rank = rack.desk.join(message);
  REQUIRE(rack.upstream.logs.size() == 1);
  RelayLog& log = *rack.upstream.logs[0];
  rack.tell(log, ok_status());
  CHECK(log.priorities.empty());
  const size_t chunks = log.spec.chunks.size();
  const auto set_to = [&](uint32_t policy, const std::vector<int32_t>& by_tensor, int32_t first,
                          int32_t last) {
    log.priorities.clear();
    rack.desk.say(rank, priorities_message(policy, by_tensor));
    REQUIRE(log.priorities.size() == 1);
    REQUIRE(log.priorities[0].size() == chunks);
    CHECK(log.priorities[0].front() == first);
    CHECK(log.priorities[0].back() == last);
  };
  set_to(kForwardOrder, {1, 2}, 1, 2);
  set_to(kExplicit, {-5, 9}, -5, 9);
  set_to(kFifo, {}, 0, 0);
}

TEST_CASE("priorities that are set before a relayed job starts are passed on when it starts") {
  Rack rack;
  const auto rank = rack.desk.join(join_message("train", 0, 1));
  REQUIRE(rack.upstream.logs.size() == 1);
  RelayLog& log = *rack.upstream.logs[0];
  rack.desk.say(rank, priorities_message(0, {3, 4}));
  CHECK(log.priorities.empty());
  rack.tell(log, ok_status());
  REQUIRE(log.priorities.size() == 1);
  CHECK(log.priorities[0].front() == 3);
  CHECK(log.priorities[0].back() == 4);
}

TEST_CASE("a relay that fails ends its job, before the job starts and while it runs") {
  Rack rack;
  for (const bool runs : {false, true}) {
    const auto rank = rack.desk.join(join_message("train", 0, 1));
    RelayLog& log = *rack.upstream.logs.back();
    if (runs) {
      rack.tell(log, ok_status());
      CHECK(rack.desk.take(rank).at(0).has_session());
    }
    rack.tell(log, Error{ErrorCode::kWorkerLost, "rank 0 (10.0.1.1:5000) was lost"});
    const proto::Failure failure = rack.desk.take_failure(rank);
    CHECK(failure.code() == static_cast<uint32_t>(ErrorCode::kWorkerLost));
    CHECK_THAT(failure.message(),
               Contains("job 'train'") &&
                   Contains("upper box 10.0.0.9:9541, to which this box forwards its sums") &&
                   Contains("rank 0 (10.0.1.1:5000) was lost"));
    CHECK(log.is_gone);
    CHECK(rack.desk.job_count() == 0);
  }
}

TEST_CASE("a relay's report about a finished job is ignored") {
  Rack rack;
  rack.desk.hang_up(rack.desk.join(join_message("train", 0, 1)));
  REQUIRE(rack.upstream.logs.size() == 1);
  RelayLog& former = *rack.upstream.logs[0];
  CHECK(former.is_gone);
  const auto rank = rack.desk.join(join_message("train", 0, 1));
  REQUIRE(rack.upstream.logs.size() == 2);
  rack.tell(former, ok_status());
  rack.tell(former, Error{ErrorCode::kTimeout, "too late"});
  CHECK(rack.desk.take(rank).empty());
  CHECK(rack.desk.job_count() == 1);
}

TEST_CASE("a relayed job waits for its ranks if all of them are lost at once") {
  for (const bool come_back : {true, false}) {
    Rack rack;
    auto join = join_message("train", 0, 1);
    join.mutable_join()->set_lost_timeout_ms(5'000);
    const auto rank = rack.desk.join(join);
    RelayLog& log = *rack.upstream.logs[0];
    CHECK(log.spec.lost_timeout_ms == 5'000);
    rack.tell(log, ok_status());
    const proto::Session session = rack.desk.take(rank).at(0).session();
    rack.desk.hang_up(rank);
    CHECK(rack.desk.job_count() == 1);
    CHECK_FALSE(log.is_gone);
    if (come_back) {
      join.mutable_join()->set_resumes(true);
      join.mutable_join()->set_epoch(session.epoch());
      join.mutable_join()->set_generation(session.generation());
      const auto answers = rack.desk.take(rack.desk.join(join));
      REQUIRE_FALSE(answers.empty());
      CHECK(answers.front().session().epoch() == session.epoch());
      CHECK_FALSE(log.is_gone);
    } else {
      rack.desk.pass(6 * kSecond, {});
      CHECK(rack.desk.job_count() == 0);
      CHECK(log.is_gone);
      CHECK_THAT(log.reason, Contains("rank 0") && Contains("was lost"));
    }
    CHECK(rack.upstream.logs.size() == 1);
  }
}

TEST_CASE("a relayed job does not outlive its box") {
  Rack rack;
  const auto rank = rack.desk.join(join_message("train", 0, 1));
  rack.tell(*rack.upstream.logs[0], ok_status());
  CHECK(rack.desk.take(rank).at(0).has_session());
  auto again = join_message("train", 0, 1);
  again.mutable_join()->set_resumes(true);
  again.mutable_join()->set_epoch(1);
  rack.desk.crash();
  rack.upstream.host = &rack.desk.host();
  CHECK_THAT(rack.desk.take_failure(rack.desk.join(again)).message(),
             Contains("its sums went on to another box") && Contains("start all ranks again"));
}

TEST_CASE("the name of a relayed chunk is cut between two characters") {
  auto message = join_message("train", 0, 1);
  std::string name;
  while (name.size() < limits::kTensorNameBytesMax) name += "\u00e4";  // two bytes
  message.mutable_join()->mutable_tensors(0)->set_name(name);
  const RelaySpec relay = relay_spec(spec_of(message), 1, {});
  REQUIRE_FALSE(relay.chunks.empty());
  CHECK(relay.chunks[0].name == name.substr(0, name.size() - 4) + "[0]");
}

}  // namespace pbox::control::job_registry_relay_test
