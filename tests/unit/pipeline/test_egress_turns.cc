// The shares of tenants and jobs in what a pipeline sends.
#include <catch2/catch.hpp>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "pipeline/egress_turns.h"

namespace pbox::pipeline {
namespace {

// Jobs with packets of one size each, and the bytes that each has sent.
class Senders {
 public:
  // `backlog`: packets that the job wants to send.
  JobShard& add(const std::string& name, uint32_t weight, int64_t packet_bytes, uint64_t backlog) {
    auto& sender = *senders_.emplace_back(std::make_unique<Sender>());
    sender.shard.name = name;
    sender.shard.weight = weight;
    sender.packet_bytes = packet_bytes;
    sender.backlog = backlog;
    turns_.add(sender.shard);
    return sender.shard;
  }
  void remove(JobShard& shard) { turns_.remove(shard); }

  void send(uint32_t bursts) {
    for (uint32_t burst = 0; burst < bursts; ++burst) {
      const size_t filled =
          turns_.fill_burst(0, limits::kBurstPackets,
                            [this](const EgressJob& job, EgressRoom& room) { fill(job, room); });
      REQUIRE(filled <= limits::kBurstPackets);
      if (filled == 0) break;
    }
  }
  double bytes(const std::string& name) const { return static_cast<double>(sent_.at(name)); }

 private:
  struct Sender {
    JobShard shard;
    int64_t packet_bytes = 0;
    uint64_t backlog = 0;
  };

  void fill(const EgressJob& job, EgressRoom& room) {
    for (const JobShard* shard : job.shards) {
      const auto found = std::find_if(senders_.begin(), senders_.end(),
                                      [&](const auto& sender) { return &sender->shard == shard; });
      REQUIRE(found != senders_.end());
      Sender& sender = **found;
      for (; !room.is_used_up() && sender.backlog > 0; --sender.backlog) {
        room.take(static_cast<uint32_t>(sender.packet_bytes));
        sent_[shard->name] += sender.packet_bytes;
      }
    }
  }

  EgressTurns turns_;
  std::vector<std::unique_ptr<Sender>> senders_;
  std::map<std::string, int64_t> sent_;
};

constexpr uint64_t kEndless = UINT64_MAX;

}  // namespace

TEST_CASE("a run of packets takes the room that they take one by one") {
  for (const int64_t bytes : {1, 1407, 1408, 1409, 2816, 2817, 100'000}) {
    for (const size_t limit : {1, 2, 3, 64}) {
      const EgressRoom room{.filled = 0, .limit = limit, .bytes = bytes};
      EgressRoom single = room, run = room;
      size_t count = 0;
      for (; count < 20 && !single.is_used_up(); ++count) single.take(1408);
      CHECK(run.fits(20, 1408) == count);
      run.take_run(count, count * 1408);
      CHECK(run.filled == single.filled);
      CHECK(run.bytes == single.bytes);
    }
  }
}

TEST_CASE("tenants send in proportion to their weights, however many jobs they have") {
  Senders senders;
  senders.add("acme/a", 1, 1408, kEndless);
  senders.add("acme/b", 1, 8192, kEndless);
  senders.add("acme/c", 1, 1408, kEndless);
  senders.add("beta/a", 3, 1408, kEndless);
  senders.send(20'000);
  const double acme = senders.bytes("acme/a") + senders.bytes("acme/b") + senders.bytes("acme/c");
  CHECK(senders.bytes("beta/a") / acme == Approx(3).epsilon(0.005));
  CHECK(senders.bytes("acme/b") / senders.bytes("acme/a") == Approx(1).epsilon(0.005));
  CHECK(senders.bytes("acme/c") / senders.bytes("acme/a") == Approx(1).epsilon(0.005));
}

TEST_CASE("a job has one turn, however many of its parts are here") {
  Senders senders;
  for (int part = 0; part < 5; ++part) senders.add("acme/a", 1, 1408, kEndless);
  senders.add("acme/b", 1, 8192, kEndless);
  senders.send(10'000);
  CHECK(senders.bytes("acme/b") / senders.bytes("acme/a") == Approx(1).epsilon(0.005));
}

TEST_CASE("jobs without a tenant share one turn") {
  Senders senders;
  senders.add("a", 1, 1408, kEndless);
  senders.add("b", 1, 1408, kEndless);
  senders.add("beta/a", 1, 1408, kEndless);
  senders.send(10'000);
  const double none = senders.bytes("a") + senders.bytes("b");
  CHECK(senders.bytes("beta/a") / none == Approx(1).epsilon(0.005));
}

TEST_CASE("a tenant that sends little leaves the rest to the others, and saves nothing up") {
  Senders senders;
  senders.add("acme/a", 1, 1408, 100);
  senders.add("beta/a", 1, 1408, kEndless);
  senders.send(1'000);
  CHECK(senders.bytes("acme/a") == 100 * 1408);
  CHECK(senders.bytes("beta/a") == (1'000.0 * limits::kBurstPackets - 100) * 1408);
  senders.add("acme/late", 1, 1408, kEndless);
  const double before = senders.bytes("beta/a");
  senders.send(1'000);
  CHECK(senders.bytes("acme/late") / (senders.bytes("beta/a") - before) == Approx(1).epsilon(0.01));
}

TEST_CASE("a job that was removed has no turn, and its tenant goes with the last one") {
  Senders senders;
  JobShard& first = senders.add("acme/a", 1, 1408, kEndless);
  senders.add("acme/b", 1, 1408, kEndless);
  JobShard& only = senders.add("beta/a", 1, 1408, kEndless);
  senders.send(100);
  const double sent = senders.bytes("acme/a");
  senders.remove(first);
  senders.remove(only);
  senders.remove(only);
  const double before = senders.bytes("acme/b");
  senders.send(100);
  CHECK(senders.bytes("acme/a") == sent);
  CHECK(senders.bytes("acme/b") - before == 100.0 * limits::kBurstPackets * 1408);
}

TEST_CASE("a tenant whose turn is in debt is not taken for idle") {
  Senders senders;
  // The first job leaves a little of the tenant's turn. The second one overdraws that.
  senders.add("first", 1, EgressTurns::kQuantumBytes - 1, 1);
  senders.send(1);
  senders.add("second", 1, 20 * EgressTurns::kQuantumBytes, 3);
  senders.send(3);
  CHECK(senders.bytes("second") == 3.0 * 20 * EgressTurns::kQuantumBytes);
}

}  // namespace pbox::pipeline
