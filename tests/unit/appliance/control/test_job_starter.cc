// The phases of a start: what a part waits for, and what lets it continue.
#include <catch2/catch.hpp>

#include "appliance/control/job_starter.h"
#include "tests/unit/appliance/control/registry_bench.h"

namespace pbox::control::job_starter_test {
namespace {

const JobKey kPart{"train", 0};

struct Starter : Bench {
  std::unique_ptr<storage::Disk> disk = std::move(*storage::open_state_folder(""));
  FickleEpochs epochs{*disk};
  StateHandover handover{context, parts, owner};
  SnapshotCoordinator snapshots{context, host, parts, nullptr, owner};
  RelayConnector relays{context, nullptr, owner};
  BackupKeeper backups{context, parts, nullptr, owner};
  SessionSender sessions{context, host};
  StepVerdicts verdicts{context, host, parts, owner};
  JobStarter starter{context, host,  spis,
                     epochs,  owner, {handover, snapshots, relays, backups, sessions, verdicts}};
  Job& job = add(join_optimizing(0));

  Starter() {
    owner.on_advance = [this](const JobKey& part) { starter.advance(part); };
    for (uint32_t rank = 0; rank < job.members().size(); ++rank) {
      job.members()[rank].connection = rank + 1;
      context.connections.open(rank + 1, nic::Endpoint{}, context.now_ns);
      context.connections.find(rank + 1)->job = &job;
    }
  }
  ~Starter() { close_jobs(); }
  size_t sessions_sent() {
    size_t count = 0;
    for (const Action& action : context.connections.take_actions()) {
      count += action.kind == Action::Kind::kSend && action.message.has_session() ? 1 : 0;
    }
    return count;
  }
};

}  // namespace

TEST_CASE("a part gathers until every rank is ready, and is started once") {
  Starter here;
  here.job.members()[1].state = Member::State::kAbsent;
  here.starter.advance(kPart);
  CHECK(here.starter.phase_of(kPart) == StartPhase::kGathering);
  CHECK_FALSE(here.job.running());
  here.job.members()[1].state = Member::State::kJoined;
  here.starter.advance(kPart);
  CHECK(here.starter.phase_of(kPart) == StartPhase::kRunning);
  CHECK(here.job.running());
  CHECK(here.sessions_sent() == 2);
  const uint32_t epoch = here.job.epoch();
  here.starter.advance(kPart);
  CHECK(here.job.epoch() == epoch);
  CHECK(here.host.shards(0).size() == 1);
  CHECK(here.sessions_sent() == 0);
}

TEST_CASE("a part that no box has needs no start") {
  Starter here;
  here.starter.advance({"other", 3});
  CHECK(here.starter.phase_of({"other", 3}) == StartPhase::kGathering);
  CHECK(here.owner.failures.empty());
}

TEST_CASE("a part waits in the phase whose answer is missing, and the answer takes it on") {
  Starter here;
  Bench::resume(here.job, "former", 7, 0);
  here.starter.advance(kPart);
  CHECK(here.starter.phase_of(kPart) == StartPhase::kFetchingState);
  CHECK(here.starter.on_tick(here.job));
  REQUIRE(here.parts.box_questions.size() == 1);
  here.parts.box_questions[0].done(Error{ErrorCode::kNotFound, "nothing of that"});
  CHECK(here.starter.phase_of(kPart) == StartPhase::kRunning);
  CHECK(here.job.epoch() > 7);
}

TEST_CASE("an answer does not start a part that has lost a rank meanwhile") {
  Starter here;
  Bench::resume(here.job, "former", 7, 0);
  here.starter.advance(kPart);
  const Member former = here.job.members()[1];
  here.job.members()[1] = {};
  here.parts.box_questions[0].done(Error{ErrorCode::kNotFound, "nothing of that"});
  CHECK(here.starter.phase_of(kPart) == StartPhase::kGathering);
  CHECK_FALSE(here.job.running());
  here.job.members()[1] = former;
  here.starter.advance(kPart);
  CHECK(here.job.running());
  CHECK(here.parts.box_questions.size() == 1);  // an answer that is recorded is not requested again
}

TEST_CASE("without an epoch a part tries again with each tick, as long as it may gather") {
  Starter here;
  here.epochs.away = true;
  here.starter.advance(kPart);
  CHECK(here.starter.phase_of(kPart) == StartPhase::kReservingEpoch);
  CHECK(here.noted("epoch_awaited"));
  CHECK(here.starter.on_tick(here.job));
  SECTION("it comes") {
    here.epochs.away = false;
    CHECK(here.starter.on_tick(here.job));
    CHECK(here.job.running());
  }
  SECTION("it does not") {
    here.pass(60 * kSecond + 1);
    CHECK(here.starter.on_tick(here.job));
    CHECK(here.owner.failures.size() == 1);
  }
}

TEST_CASE("a new part starts once its memory has its pages") {
  Starter here;
  here.host.has_pages = std::make_shared<bool>(false);
  here.starter.advance(kPart);
  CHECK(here.starter.phase_of(kPart) == StartPhase::kPrefaulting);
  CHECK(here.starter.on_tick(here.job));
  CHECK_FALSE(here.job.running());
  *here.host.has_pages = true;
  SECTION("with the next tick") {
    CHECK(here.starter.on_tick(here.job));
    CHECK(here.job.running());
    CHECK(here.sessions_sent() == 2);
  }
  SECTION("unless it has lost a rank meanwhile") {
    here.job.members()[1].state = Member::State::kAbsent;
    CHECK_FALSE(here.starter.on_tick(here.job));
    CHECK_FALSE(here.job.running());
    here.starter.advance_without_missing(kPart);
    CHECK(here.job.running());
  }
}

TEST_CASE("a part that its ranks wait for gets its pages while it runs") {
  Starter here;
  Bench::resume(here.job, "", 7, 0);
  here.host.has_pages = std::make_shared<bool>(false);
  here.starter.advance(kPart);
  CHECK(here.job.running());
}

TEST_CASE("memory that was reserved for other ranks is taken anew") {
  Starter here;
  here.host.has_pages = std::make_shared<bool>(false);
  here.starter.advance(kPart);
  REQUIRE(here.starter.phase_of(kPart) == StartPhase::kPrefaulting);
  here.job.members()[1].is_on_host = true;  // reads results in the box's memory
  *here.host.has_pages = true;
  CHECK(here.starter.on_tick(here.job));
  REQUIRE(here.job.running());
  for (const auto& shard : here.job.shards().all()) CHECK(shard->arena().file().ok());
}

TEST_CASE("ranks that did not come back are excluded only when they are given up") {
  Starter here;
  Bench::resume(here.job, "", 7, 0);
  here.job.members()[1] = {};
  here.starter.advance(kPart);
  CHECK_FALSE(here.job.running());
  here.starter.advance_without_missing(kPart);
  CHECK(here.job.running());
  CHECK(here.job.members()[1].state == Member::State::kExcluded);
  CHECK(here.context.totals.workers_excluded == 1);
  CHECK(here.context.totals.jobs_recovered == 1);
}

TEST_CASE("a part that cannot go on fails in its phase") {
  Starter here;
  Bench::resume(here.job, "", 7, 0);
  here.job.members()[0].consumed.assign(4, 5);
  here.job.members()[1].consumed.assign(4, 9);  // ranks are never so far apart
  here.starter.advance(kPart);
  CHECK(here.owner.failures.size() == 1);
  CHECK_FALSE(here.job.running());
  here.starter.forget(kPart);
  CHECK(here.starter.phase_of(kPart) == StartPhase::kGathering);
}

TEST_CASE("each phase has a name") {
  CHECK(std::string(to_string(StartPhase::kGathering)) == "gathering");
  CHECK(std::string(to_string(StartPhase::kRunning)) == "running");
}

}  // namespace pbox::control::job_starter_test
