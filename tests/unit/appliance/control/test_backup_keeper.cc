// The search for a backup box: who is asked, when, and what becomes of the part.
#include <catch2/catch.hpp>

#include "appliance/control/backup_keeper.h"
#include "tests/unit/appliance/control/registry_bench.h"

namespace pbox::control::backup_keeper_test {
namespace {

const JobKey kPart{"train", 0};

struct Joined {
  std::string address;
  RelaySpec spec;
  std::function<void(Status)> on_change;
  size_t seeds = 0;
  bool is_gone = false;
};

class RecordingBoxes : public BackupBoxes {
 public:
  std::unique_ptr<Relay> join(const std::string& address, RelaySpec spec,
                              std::function<void(Status)> on_change) override {
    joins.push_back(std::make_unique<Joined>());
    joins.back()->address = address;
    joins.back()->spec = std::move(spec);
    joins.back()->on_change = std::move(on_change);
    return std::make_unique<Way>(*joins.back());
  }
  std::vector<std::unique_ptr<Joined>> joins;

 private:
  class Way : public Relay {
   public:
    explicit Way(Joined& joined) : joined_(joined) {}
    ~Way() override { joined_.is_gone = true; }
    void seed(std::vector<std::vector<float>> values) override { joined_.seeds = values.size(); }
    void run(std::vector<RelayLane>) override {}
    void set_priorities(std::vector<int32_t>) override {}
    RelayView view() const override { return {}; }

   private:
    Joined& joined_;
  };
};

proto::WorkerMessage join_with_backup() {
  auto message = join_optimizing(0);
  message.mutable_join()->set_replicas(1);
  return message;
}

struct Keeper : Bench {
  RecordingBoxes boxes;
  BackupKeeper keeper{context, parts, &boxes, owner};
  Job& job;

  explicit Keeper(const std::vector<std::string>& names = {"east", "west"},
                  const proto::WorkerMessage& message = join_with_backup())
      : job(add(message)) {
    for (const std::string& name : names) {
      proto::PartPlace place;
      place.set_box(name);
      place.set_address(name + ":9541");
      parts.backup_places.push_back(place);
    }
  }
  ~Keeper() { close_jobs(); }
  Joined& last() { return *boxes.joins.back(); }
  // Starts the part, without a copy or with one at the box that has joined last.
  void run() {
    REQUIRE(open(job));
    keeper.on_started(job);
  }
};

const Error kNoMemory{ErrorCode::kResourceExhausted, "no memory"};

}  // namespace

TEST_CASE("a part that wants no backup copy waits for none") {
  Keeper here({"east"}, join_optimizing(0));
  CHECK(here.keeper.prepare_backup(here.job, nullptr));
  here.keeper.on_tick(here.job);
  CHECK(here.boxes.joins.empty());
}

TEST_CASE("a part waits for the first box that can have its copy") {
  Keeper here;
  CHECK_FALSE(here.keeper.prepare_backup(here.job, nullptr));
  CHECK_FALSE(here.keeper.prepare_backup(here.job, nullptr));
  REQUIRE(here.boxes.joins.size() == 1);
  CHECK(here.last().address == "east:9541");
  CHECK(here.last().spec.is_backup);
  CHECK(here.job.copy().box == "east");
  CHECK(here.job.copy().job == here.last().spec.job);
  here.last().on_change(ok_status());
  CHECK(here.owner.advanced == std::vector<JobKey>{kPart});
  CHECK(here.keeper.prepare_backup(here.job, nullptr));
}

TEST_CASE("every box is asked once, under another name, and then the part starts without a copy") {
  Keeper here;
  CHECK_FALSE(here.keeper.prepare_backup(here.job, nullptr));
  here.last().on_change(kNoMemory);
  CHECK(here.boxes.joins[0]->is_gone);
  CHECK_FALSE(here.keeper.prepare_backup(here.job, nullptr));
  CHECK(here.last().address == "west:9541");
  CHECK(here.last().spec.job != here.boxes.joins[0]->spec.job);
  here.last().on_change(kNoMemory);
  CHECK(here.owner.advanced.size() == 2);
  CHECK(here.keeper.prepare_backup(here.job, nullptr));
  CHECK(here.boxes.joins.size() == 2);
  CHECK(here.noted("backup_refused"));
  CHECK(here.noted("backup_missing"));
  CHECK(here.job.copy().job.empty());
}

TEST_CASE("a copy gets the state that the part begins with, and another copy another state") {
  Keeper here;
  PartState state;
  state.epoch = 3;
  CHECK_FALSE(here.keeper.prepare_backup(here.job, &state));
  here.last().on_change(ok_status());
  CHECK_FALSE(here.keeper.prepare_backup(here.job, &state));
  CHECK(here.last().seeds == 4);
  here.last().on_change(ok_status());
  CHECK(here.keeper.prepare_backup(here.job, &state));
  // The ranks turn out to come from a later session, whose state has another epoch.
  state.epoch = 4;
  CHECK_FALSE(here.keeper.prepare_backup(here.job, &state));
  REQUIRE(here.boxes.joins.size() == 2);
  CHECK(here.boxes.joins[0]->is_gone);
  CHECK(here.last().address == "east:9541");  // asked again, because it has not refused
}

TEST_CASE("a part whose backup box is gone for 2 s, or fails, gathers again") {
  Keeper here;
  CHECK_FALSE(here.keeper.prepare_backup(here.job, nullptr));
  here.last().on_change(ok_status());
  here.run();
  here.keeper.on_tick(here.job);
  CHECK(here.owner.gathered.empty());
  SECTION("gone") {
    here.parts.backup_places.erase(here.parts.backup_places.begin());
    here.keeper.on_tick(here.job);
    here.pass(2 * kSecond - 1);
    here.keeper.on_tick(here.job);
    CHECK(here.owner.gathered.empty());
    here.pass(1);
    here.keeper.on_tick(here.job);
  }
  SECTION("fails") {
    here.last().on_change(kNoMemory);
  }
  CHECK(here.owner.gathered == std::vector<std::string>{"backup_lost"});
  CHECK(here.context.totals.backups_lost == 1);
  CHECK(here.last().is_gone);
}

TEST_CASE("no part is disturbed while there is no other box that could have the copy") {
  Keeper here({"east"});
  CHECK_FALSE(here.keeper.prepare_backup(here.job, nullptr));
  here.last().on_change(ok_status());
  here.run();
  here.parts.backup_places.clear();
  for (int tick = 0; tick < 5; ++tick) {
    here.pass(kSecond);
    here.keeper.on_tick(here.job);
  }
  CHECK(here.owner.gathered.empty());
}

TEST_CASE("a part without a copy asks boxes, ever more rarely, and gathers for one that agrees") {
  Keeper here(std::vector<std::string>{});
  CHECK(here.keeper.prepare_backup(here.job, nullptr));  // there is no other box
  here.run();
  proto::PartPlace place;
  place.set_box("late");
  place.set_address("late:9541");
  here.parts.backup_places.push_back(place);
  here.keeper.on_tick(here.job);
  CHECK(here.boxes.joins.empty());  // not within the first second
  here.pass(kSecond);
  here.keeper.on_tick(here.job);
  REQUIRE(here.boxes.joins.size() == 1);
  here.pass(60 * kSecond);
  here.keeper.on_tick(here.job);
  CHECK(here.boxes.joins.size() == 1);  // it has not answered
  here.last().on_change(kNoMemory);
  here.pass(4 * kSecond - 1);
  here.keeper.on_tick(here.job);
  CHECK(here.boxes.joins.size() == 1);
  here.pass(1);
  here.keeper.on_tick(here.job);
  REQUIRE(here.boxes.joins.size() == 2);
  CHECK(here.owner.gathered.empty());
  here.last().on_change(ok_status());
  CHECK(here.owner.gathered == std::vector<std::string>{"backup_found"});
}

TEST_CASE("answers about a part that was closed are ignored") {
  Keeper here;
  CHECK_FALSE(here.keeper.prepare_backup(here.job, nullptr));
  here.keeper.forget(kPart);
  here.last().on_change(ok_status());
  CHECK(here.owner.advanced.empty());
}

TEST_CASE("a part whose ranks leave gathers for no copy") {
  Keeper here({"east"});
  CHECK_FALSE(here.keeper.prepare_backup(here.job, nullptr));
  here.last().on_change(ok_status());
  here.run();
  here.job.members()[1].state = Member::State::kLeft;
  here.parts.backup_places[0].set_box("west");
  for (int tick = 0; tick < 5; ++tick) {
    here.pass(kSecond);
    here.keeper.on_tick(here.job);
  }
  CHECK(here.owner.gathered.empty());
}

TEST_CASE("a box that agrees to have a copy is not used any more once a rank has left") {
  Keeper here(std::vector<std::string>{});
  CHECK(here.keeper.prepare_backup(here.job, nullptr));
  here.run();
  proto::PartPlace place;
  place.set_box("late");
  place.set_address("late:9541");
  here.parts.backup_places.push_back(place);
  here.pass(kSecond);
  here.keeper.on_tick(here.job);
  REQUIRE(here.boxes.joins.size() == 1);
  here.job.members()[1].state = Member::State::kLeft;
  here.last().on_change(ok_status());
  CHECK(here.owner.gathered.empty());
}

}  // namespace pbox::control::backup_keeper_test
