// Cuts of the parts on one box, and the snapshots that its parts begin with.
#include <catch2/catch.hpp>

#include "appliance/control/snapshot_coordinator.h"
#include "tests/unit/appliance/control/registry_bench.h"

namespace pbox::control::snapshot_coordinator_test {
namespace {

using Catch::Contains;
using proto::CutProgress;

const JobKey kPart{"train", 0};

// Records the requests. A test answers them.
class RecordingStore : public snapshot::SnapshotStore {
 public:
  void begin(const std::string&, std::function<void(Result<uint64_t>)>) override {}
  void write_part(uint64_t, snapshot::PartHead, snapshot::Cuts,
                  std::function<void(Result<snapshot::PartFile>)> done) override {
    writes.push_back(std::move(done));
  }
  void finish(snapshot::Manifest, std::function<void(Status)>) override {}
  void discard(const std::string&, uint64_t) override {}
  void load(snapshot::PartHead, snapshot::Choice choice,
            std::function<void(Result<snapshot::Restored>)> done) override {
    loads.push_back({std::move(choice), std::move(done)});
  }

  struct Load {
    snapshot::Choice choice;
    std::function<void(Result<snapshot::Restored>)> done;
  };
  std::vector<Load> loads;
  std::vector<std::function<void(Result<snapshot::PartFile>)>> writes;
};

proto::WorkerMessage join_restoring(const std::string& snapshot) {
  auto message = join_optimizing(0);
  message.mutable_join()->set_restore(snapshot);
  return message;
}

struct Coordinator : Bench {
  RecordingStore store;
  SnapshotCoordinator snapshots{context, host, parts, &store, owner};
  Job& job;

  explicit Coordinator(const proto::WorkerMessage& message = join_optimizing(0))
      : job(add(message)) {}

  // Sets the finished rounds of all chunks, as if the job had trained.
  void train(uint64_t rounds) {
    for (const uint32_t pipeline : {0u, 1u}) {
      for (pipeline::JobShard* shard : host.shards(pipeline)) {
        for (auto& chunk : shard->chunks()) chunk.rounds_finished = rounds;
      }
    }
  }
  CutProgress ask(uint64_t snapshot, uint32_t round, bool over = false) {
    proto::AskCut question;
    question.set_job(kPart.first);
    question.set_part(kPart.second);
    question.set_snapshot(snapshot);
    question.set_round(round);
    question.set_over(over);
    return *snapshots.take_cut(question);
  }
};

}  // namespace

TEST_CASE("a snapshot needs a folder, and a job that has weights") {
  Coordinator here;
  SnapshotCoordinator without(here.context, here.host, here.parts, nullptr, here.owner);
  CHECK_THAT(without.begin("train", kSecond).error().message, Contains("[snapshots] directory"));
  CHECK(here.snapshots.begin("other", kSecond).error().code == ErrorCode::kNotFound);
  here.add(join_message("sums", 0, 2));
  CHECK_THAT(here.snapshots.begin("sums", kSecond).error().message, Contains("mode aggregate"));
  CHECK_FALSE(here.snapshots.view("train"));
}

TEST_CASE("a part that restores nothing has nothing to read") {
  Coordinator here;
  CHECK(*here.snapshots.read_for_start(here.job, nullptr));
  CHECK(here.store.loads.empty());
}

TEST_CASE("a part begins with the snapshot that it names, once that is read") {
  Coordinator here(join_restoring("3"));
  CHECK_FALSE(*here.snapshots.read_for_start(here.job, nullptr));
  CHECK_FALSE(*here.snapshots.read_for_start(here.job, nullptr));
  REQUIRE(here.store.loads.size() == 1);
  CHECK(here.store.loads[0].choice.which == "3");
  CHECK(here.snapshots.is_reading(kPart));
  SECTION("read") {
    here.store.loads[0].done(snapshot::Restored{.number = 3, .steps = 40, .chunks = {}});
    CHECK(here.owner.advanced == std::vector<JobKey>{kPart});
    CHECK(here.job.restored()->steps == 40);
    CHECK(*here.snapshots.read_for_start(here.job, nullptr));
  }
  SECTION("missing") {
    here.store.loads[0].done(Error{ErrorCode::kNotFound, "there is no snapshot 3"});
    REQUIRE(here.owner.failures.size() == 1);
    CHECK_THAT(here.owner.failures[0], Contains("there is no snapshot 3"));
    CHECK(here.owner.advanced.empty());
  }
  SECTION("closed meanwhile") {
    here.snapshots.on_closed(kPart);
    here.store.loads[0].done(snapshot::Restored{.number = 3, .steps = 40, .chunks = {}});
    CHECK(here.owner.advanced.empty());
    CHECK_FALSE(here.job.restored());
  }
  SECTION("the disk does not answer: there is nothing to begin with instead") {
    here.pass(100 * kSecond);
    here.snapshots.on_tick();
    CHECK(here.snapshots.is_reading(kPart));
  }
}

TEST_CASE("a part cannot begin with a snapshot where none are kept") {
  Coordinator here(join_restoring("latest"));
  SnapshotCoordinator without(here.context, here.host, here.parts, nullptr, here.owner);
  CHECK_THAT(without.read_for_start(here.job, nullptr).error().message,
             Contains("[snapshots] directory"));
}

TEST_CASE("optimizer state that was lost is read from a snapshot, but not waited for over 30 s") {
  Coordinator here;
  Bench::resume(here.job, "gone", 7, 5);
  CHECK_FALSE(*here.snapshots.read_for_start(here.job, nullptr));
  REQUIRE(here.store.loads.size() == 1);
  CHECK(here.store.loads[0].choice.ranks == std::vector<uint64_t>{1000, 1000});
  here.pass(30 * kSecond - 1);
  here.snapshots.on_tick();
  CHECK(here.owner.advanced.empty());
  here.pass(1);
  here.snapshots.on_tick();
  CHECK(here.owner.advanced == std::vector<JobKey>{kPart});
  CHECK(here.noted("snapshot_unusable"));
  CHECK(here.job.optimizer_state()->number == 0);
  CHECK(*here.snapshots.read_for_start(here.job, nullptr));
  here.store.loads[0].done(snapshot::Restored{.number = 9, .steps = 1, .chunks = {}});  // too late
  CHECK(here.job.optimizer_state()->number == 0);
}

TEST_CASE("a part that runs is surveyed, cut and written") {
  Coordinator here;
  proto::AskCut question;
  question.set_job("train");
  CHECK(here.snapshots.take_cut(question).error().code == ErrorCode::kUnavailable);
  REQUIRE(here.open(here.job));
  here.train(5);
  CHECK(here.ask(0, 0).newest_round() == 5);
  CHECK(here.ask(1, 5).state() == CutProgress::WRITING);
  CHECK(here.snapshots.cut_bytes({}) == 3 * sizeof(float) * 20007);
  REQUIRE(here.store.writes.size() == 1);
  here.store.writes[0](snapshot::PartFile{.box = {}, .name = "a", .bytes = 77, .crc32c = 5});
  CHECK(here.ask(1, 5).state() == CutProgress::WRITTEN);
  CHECK(here.ask(1, 5).bytes() == 77);
  CHECK(here.snapshots.cut_bytes({}) == 0);
  here.ask(1, 5, true);
  CHECK(here.ask(1, 9).state() == CutProgress::CUTTING);  // another cut, not reached yet
}

TEST_CASE("a cut takes memory until the disk has written it, even if no box asks for it any more") {
  Coordinator here;
  REQUIRE(here.open(here.job));
  here.train(5);
  constexpr uint64_t kBytes = 3 * sizeof(float) * 20007;
  REQUIRE(here.ask(1, 5).state() == CutProgress::WRITING);
  SECTION("abandoned") {
    here.ask(1, 5, true);
  }
  SECTION("not asked for") {
    here.pass(30 * kSecond + 1);
    here.snapshots.on_tick();
  }
  SECTION("cut anew") {
    REQUIRE(here.ask(1, 9).state() == CutProgress::CUTTING);
    CHECK(here.snapshots.cut_bytes({}) == 2 * kBytes);
    here.ask(1, 9, true);
  }
  CHECK(here.snapshots.cut_bytes({}) == kBytes);
  here.store.writes[0](Error{ErrorCode::kSystem, "no space left"});
  CHECK(here.snapshots.cut_bytes({}) == 0);
}

TEST_CASE("a part that is cut or written for one snapshot is not cut for another") {
  Coordinator here;
  REQUIRE(here.open(here.job));
  here.train(5);
  const auto refusal = [&] {
    proto::AskCut question;
    question.set_job(kPart.first);
    question.set_snapshot(2);
    question.set_round(9);
    const auto answer = here.snapshots.take_cut(question);
    return answer ? "" : answer.error().message;
  };
  SECTION("cut") {
    REQUIRE(here.ask(1, 9).state() == CutProgress::CUTTING);
  }
  SECTION("written") {
    REQUIRE(here.ask(1, 5).state() == CutProgress::WRITING);
  }
  CHECK_THAT(refusal(), Contains("snapshot 1") && Contains("is being taken"));
  here.ask(1, 9, true);  // the first snapshot is over
  CHECK(refusal().empty());
}

TEST_CASE("a cut ends with its part, or when no box asks for it any more") {
  Coordinator here;
  REQUIRE(here.open(here.job));
  here.train(5);
  CHECK(here.ask(1, 9).state() == CutProgress::CUTTING);
  SECTION("closed") {
    here.job.close(here.host, here.spis);
    here.snapshots.on_closed(kPart);
    CHECK(here.ask(1, 9).state() == CutProgress::MISSED);  // it gathers again
    SECTION("removed") {
      here.snapshots.on_removed(kPart);
      CHECK(here.ask(1, 9).state() == CutProgress::FAILED);
    }
  }
  SECTION("not asked for") {
    here.pass(30 * kSecond);
    here.snapshots.forgive(20 * kSecond);  // the box stood still
    here.pass(20 * kSecond);
    here.snapshots.on_tick();
    CHECK(here.snapshots.cut_bytes({}) > 0);
    here.pass(1);
    here.snapshots.on_tick();
  }
  CHECK(here.snapshots.cut_bytes({}) == 0);
}

TEST_CASE("a box without a folder takes no cut, even if it was not surveyed first") {
  Coordinator here;
  SnapshotCoordinator without(here.context, here.host, here.parts, nullptr, here.owner);
  REQUIRE(here.open(here.job));
  here.train(5);
  proto::AskCut question;
  question.set_job(kPart.first);
  question.set_snapshot(1);
  question.set_round(5);
  const CutProgress progress = *without.take_cut(question);
  CHECK(progress.state() == CutProgress::FAILED);
  CHECK_THAT(progress.message(), Contains("[snapshots] directory"));
}

TEST_CASE("a cut takes no memory that jobs may not have") {
  Coordinator here;
  REQUIRE(here.open(here.job));
  here.train(5);
  here.context.options.job_memory_bytes = 1'000'000;
  here.owner.memory_taken = 900'000;
  const CutProgress progress = here.ask(1, 5);
  CHECK(progress.state() == CutProgress::FAILED);
  CHECK_THAT(progress.message(), Contains("[memory] job_share"));
}

TEST_CASE("a cut before the first round is refused") {
  Coordinator here;
  REQUIRE(here.open(here.job));
  const CutProgress progress = here.ask(1, 0);
  CHECK(progress.state() == CutProgress::FAILED);
  CHECK_THAT(progress.message(), Contains("before its first round"));
  here.snapshots.on_tick();
}

TEST_CASE("a claim that is granted after the snapshot is over is given back") {
  Coordinator here;
  REQUIRE(here.open(here.job));
  here.parts.delays_claims = true;
  REQUIRE(here.snapshots.begin("train", kSecond));
  REQUIRE(here.parts.claims.size() == 1);
  here.pass(kSecond);
  here.snapshots.on_tick();
  CHECK(here.snapshots.view("train")->state == std::string("failed"));
  here.parts.released.clear();
  SECTION("nobody else wants it") {
    here.parts.claims[0](ok_status());
    CHECK(here.parts.released == std::vector<std::string>{"train"});
  }
  SECTION("it was refused") {
    here.parts.claims[0](Error{ErrorCode::kUnavailable, "another box has it"});
    CHECK(here.parts.released.empty());
  }
  SECTION("the next snapshot needs it") {
    REQUIRE(here.snapshots.begin("train", kSecond));
    here.parts.claims[0](ok_status());
    CHECK(here.parts.released.empty());
  }
}

}  // namespace pbox::control::snapshot_coordinator_test
