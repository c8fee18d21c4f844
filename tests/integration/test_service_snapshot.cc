// Snapshots of a training job, and training that continues from them. Every step gives the same
// weights as without the interruption.
#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "appliance/snapshot/folder.h"
#include "tests/support/adam.h"
#include "tests/support/box_cluster.h"
#include "tests/support/mortal_box.h"

namespace pbox::test {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;

class Folder {
 public:
  Folder() {
    std::string name = fs::temp_directory_path() / "pbox-snapshots-XXXXXX";
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Folder() { fs::remove_all(path_); }
  const std::string& path() const { return path_; }
  std::string flag() const { return "--snapshots.directory=" + path_; }

 private:
  std::string path_;
};

// Begins steps and returns while they run, after at least one round of a chunk at this box. A
// snapshot from now on therefore has a later state than the one before.
void step_on(AdamTraining& training, const Daemon& box) {
  const auto rounds = [&] { return box.metric("pbox_job_chunk_rounds_total"); };
  const uint64_t before = rounds();
  training.begin_steps();
  REQUIRE(await([&] { return rounds() > before; }));
}

// Takes a snapshot while ranks take steps. Returns the number of steps that it contains.
uint64_t take_snapshot(const Daemon& box) {
  const Output taken = ask(box, PBOX_CTL_PATH, {"snapshot", "adam", "-o", "json"});
  INFO(taken.text << taken.errors);
  REQUIRE(taken.status == 0);
  const auto page = nlohmann::json::parse(taken.text);
  CHECK(page["state"] == "done");
  CHECK(page["parts"] == page["parts_written"]);
  return page["steps"];
}

std::string refusal(const AdamTraining::Options& options) {
  try {
    AdamTraining{options};
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing is wrong";
}

std::vector<snapshot::Manifest> all_of(const Folder& folder) {
  std::vector<Error> damaged;
  auto found = snapshot::list(folder.path(), "adam", damaged);
  CHECK(damaged.empty());
  return found;
}

}  // namespace

TEST_CASE("a job continues from a snapshot that was taken while it trained") {
  const Folder folder;
  uint64_t steps = 0;
  {
    const Daemon box({folder.flag()});
    AdamTraining training({.box = box.control(), .restore = "latest"});  // there is none yet
    CHECK(training.restored_snapshot() == 0);
    const uint64_t at_rest = take_snapshot(box);
    CHECK(at_rest == 0);
    step_on(training, box);
    steps = take_snapshot(box);
    training.end_steps();
    CHECK(steps > 0);
    const uint64_t last = take_snapshot(box);
    CHECK(last > steps);
    const auto kept = all_of(folder);
    REQUIRE(kept.size() == 2);
    CHECK(kept[0].number == 2);
    CHECK(kept[0].steps == steps);
    CHECK(kept[1].steps == last);
    CHECK(box.metric("pbox_snapshots_total") == 3);
    CHECK(box.metric("pbox_snapshots_failed_total") == 0);
    CHECK(box.metric("pbox_jobs_failed_total") == 0);
  }
  // The first box and its ranks are gone.
  const Daemon box({folder.flag()});
  {
    AdamTraining training({.box = box.control(), .restore = "2"});
    CHECK(training.restored_snapshot() == 2);
    CHECK(training.restored_steps() == steps);
    step_on(training, box);
    const uint64_t further = take_snapshot(box);
    CHECK(further > steps);
    training.end_steps();
    CHECK(all_of(folder).back().steps == further);
  }
  REQUIRE(box.await_no_jobs(kDeadlineMs));
  const std::string file = snapshot::number_folder(folder.path(), "adam", 4) + "/part-0-of-1";
  REQUIRE(fs::exists(file));
  const Output whole = ask(box, PBOX_CTL_PATH, {"jobs"});
  CHECK(whole.status == 0);
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).seekp(5000).put('x');
  CHECK_THAT(refusal({.box = box.control(), .restore = "latest"}), Contains("damaged"));
  REQUIRE(box.await_no_jobs(kDeadlineMs));
  CHECK_THAT(refusal({.box = box.control(), .restore = "17"}),
             Contains("there is no snapshot 17") && Contains("there are 3 4"));
  REQUIRE(box.await_no_jobs(kDeadlineMs));
  CHECK_THAT(refusal({.box = box.control(), .restore = "newest"}), Contains("\"latest\""));
  CHECK(AdamTraining({.box = box.control(), .restore = "3"}).restored_steps() > 0);
}

TEST_CASE(
    "optimizer state that is lost with a box is restored from the last snapshot of the same run") {
  const Folder folder;
  MortalBox box({folder.flag()});
  {
    // A snapshot of an earlier run, which must not be used.
    AdamTraining training({.box = box.daemon().control()});
    training.begin_steps();
    training.end_steps();
    take_snapshot(box.daemon());
    training.kill();
  }
  REQUIRE(box.daemon().await_no_jobs(60'000));
  AdamTraining training({.box = box.daemon().control()});
  const auto steps_with_a_loss = [&] {
    training.begin_steps();
    training.end_steps();
    box.kill();
    box.start_again();
    training.begin_steps();
    return training.end_steps();
  };
  AdamTraining::Report report = steps_with_a_loss();
  CHECK(report.restarts == 1);
  CHECK(report.restored_from == 0);
  CHECK_THAT(box.daemon().program().errors(), Contains("the optimizer state restarts from 0"));
  const uint64_t steps = take_snapshot(box.daemon());
  report = steps_with_a_loss();
  CHECK(report.restarts == 2);
  CHECK(report.restored_from == 2);
  CHECK_THAT(box.daemon().program().errors(),
             Contains("is that of snapshot 2, taken after " + std::to_string(steps) + " steps"));
}

TEST_CASE("a snapshot is one consistent cut across boxes, and other boxes continue from it") {
  const Folder folder;
  uint64_t steps = 0;
  {
    const EtcdCluster etcd(3);
    BoxCluster boxes(etcd, {"a", "b", "c"}, {"--cluster.rebalance=false", folder.flag()});
    AdamTraining training({.box = boxes.control()});
    for (const std::string name : {"a", "b", "c"}) CHECK(boxes.parts(name) > 0);
    step_on(training, boxes["b"]);
    take_snapshot(boxes["b"]);
    steps = take_snapshot(boxes["c"]);
    training.end_steps();
    CHECK(steps > 0);
    CHECK(all_of(folder).back().parts.size() > 2);
    training.kill();
  }
  const EtcdCluster etcd(1);
  BoxCluster boxes(etcd, {"d", "e"}, {"--cluster.rebalance=false", folder.flag()});
  AdamTraining training({.box = boxes.control(), .restore = "latest"});
  CHECK(training.restored_snapshot() == 2);
  CHECK(training.restored_steps() == steps);
  training.begin_steps();
  REQUIRE(run_tool({PBOX_CTL_PATH, "drain", "d", "--wait", "--admin", boxes["e"].admin()}));
  take_snapshot(boxes["e"]);
  CHECK(training.end_steps().restarts == 0);
}

TEST_CASE("snapshots are taken periodically, and impossible requests are refused with the reason") {
  const Folder folder;
  const Daemon box({folder.flag(), "--snapshots.every_s=1"});
  AdamTraining training({.box = box.control()});
  CHECK(await([&] { return box.metric("pbox_snapshots_total") >= 2; }));
  training.kill();
  Output refused = ask(box, PBOX_CTL_PATH, {"snapshot", "nobody"});
  CHECK(refused.status == 1);
  CHECK_THAT(refused.errors, Contains("no job 'nobody' here"));

  const Daemon without({"--snapshots.directory=none"});
  AdamTraining other({.box = without.control()});
  refused = ask(without, PBOX_CTL_PATH, {"snapshot", "adam"});
  CHECK(refused.status == 1);
  CHECK_THAT(refused.errors, Contains("[snapshots] directory"));
  other.kill();
  REQUIRE(without.await_no_jobs(60'000));
  CHECK_THAT(refusal({.box = without.control(), .restore = "latest"}),
             Contains("[snapshots] directory"));

  const Daemon locked({"--snapshots.directory=/proc/none"});
  AdamTraining third({.box = locked.control()});
  refused = ask(locked, PBOX_CTL_PATH, {"snapshot", "adam"});
  CHECK(refused.status == 1);
  CHECK_THAT(refused.errors, Contains("cannot create /proc/none"));
  CHECK(locked.metric("pbox_snapshots_failed_total") == 1);
}

TEST_CASE("a snapshot that some ranks never reach fails in time and names them") {
  const Folder folder;
  const Daemon box({folder.flag()});
  AdamTraining training({.box = box.control()});
  training.begin_steps();
  const Output late = ask(box, PBOX_CTL_PATH, {"snapshot", "adam", "--timeout", "0.000001"});
  CHECK(late.status == 1);
  CHECK_THAT(late.errors, Contains("not finished in time"));
  training.end_steps();
  CHECK(take_snapshot(box) > 0);  // nothing of the failed snapshot is in the way
}

TEST_CASE("pboxctl restore starts a job with its newest snapshot or with a given one") {
  const Folder folder;
  const auto restore = [&](const std::vector<std::string>& words) {
    std::vector<std::string> all = {"restore"};
    all.insert(all.end(), words.begin(), words.end());
    return run(PBOX_CTL_PATH, all);
  };
  const std::string directory = "--directory=" + folder.path();
  const auto nothing = restore({"adam", directory});
  CHECK(nothing.status == 1);
  CHECK_THAT(nothing.errors, Contains("no snapshot of job 'adam'"));
  {
    const Daemon box({folder.flag()});
    AdamTraining training({.box = box.control()});
    step_on(training, box);
    take_snapshot(box);
    take_snapshot(box);
    training.end_steps();
  }
  CHECK(restore({"adam", directory}).text == "PBOX_RESTORE=2\n");
  CHECK(nlohmann::json::parse(restore({"adam", directory, "-o", "json"}).text)["number"] == 2);
  const auto began = restore({"adam", directory, "--snapshot", "1", "--", "/bin/sh", "-c",
                              "echo \"$PBOX_JOB $PBOX_RESTORE $1\"; exit 7", "-", "--word"});
  CHECK(began.status == 7);
  CHECK(began.text == "adam 1 --word\n");
  CHECK_THAT(began.errors, Contains("is whole"));
  const auto missing = restore({"adam", directory, "--snapshot", "9"});
  CHECK(missing.status == 1);
  CHECK_THAT(missing.errors, Contains("no snapshot 9") && Contains("it has 1, 2"));
  CHECK(restore({}).status == 2);
  const auto file = snapshot::number_folder(folder.path(), "adam", 2) + "/part-0-of-1";
  std::fstream damaged(file, std::ios::in | std::ios::out | std::ios::binary);
  REQUIRE(damaged);
  damaged.seekp(5'000);
  damaged.put(1).put(2).put(3).put(4);
  damaged.close();
  const auto refused = restore({"adam", directory, "--", "/bin/true"});
  CHECK(refused.status == 1);
  CHECK_THAT(refused.errors, Contains("--snapshot NUMBER"));
}

}  // namespace pbox::test
