// Three boxes that coordinate through three members of a real etcd. Boxes are killed, and etcd
// fails and comes back, without any effect on the jobs of boxes that live.
#include <signal.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>

#include "tests/support/box_cluster.h"
#include "tests/support/sums.h"

namespace pbox::test {
namespace {

using Catch::Contains;
using Json = nlohmann::json;

// The lowest and the highest epoch in which parts of a job have started; 0 if none has.
std::pair<uint32_t, uint32_t> epochs_of(const Daemon& box, const std::string& job) {
  std::pair<uint32_t, uint32_t> epochs{0, 0};
  std::istringstream log(box.program().errors());
  for (std::string line; std::getline(log, line);) {
    if (line.find("job_started: ") == std::string::npos) continue;
    if (line.find("job '" + job + "'") == std::string::npos) continue;
    const std::string word = ", epoch ";
    const auto epoch =
        static_cast<uint32_t>(std::stoul(line.substr(line.find(word) + word.size())));
    epochs.first = epochs.first == 0 ? epoch : std::min(epochs.first, epoch);
    epochs.second = std::max(epochs.second, epoch);
  }
  return epochs;
}

// Returns the output of `pboxctl boxes`, line by line.
std::vector<std::string> listed_by(const Daemon& box) {
  Program pboxctl(PBOX_CTL_PATH, {"boxes", "--admin", box.admin()});
  std::vector<std::string> lines;
  while (const auto line = pboxctl.read_line(kDeadlineMs)) lines.push_back(*line);
  CHECK(pboxctl.wait_exit(kDeadlineMs) == 0);
  return lines;
}

void require_undisturbed(const Daemon& box) {
  CHECK(box.metric("pbox_jobs_failed_total") == 0);
  CHECK(box.metric("pbox_workers_lost_total") == 0);
  CHECK(box.metric("pbox_jobs_recovered_total") == 0);
}

}  // namespace

TEST_CASE("if the leader is killed, another box leads, and the jobs of other boxes continue") {
  const EtcdCluster etcd(3);
  std::map<std::string, std::unique_ptr<Daemon>> boxes;
  for (const char* name : {"a", "b", "c"}) boxes[name] = start_box(etcd, name);
  const auto all = [&] {
    std::vector<const Daemon*> list;
    for (const auto& [name, box] : boxes) list.push_back(box.get());
    return list;
  };
  std::string leader;
  REQUIRE(await([&] { return !(leader = agreed_leader(all())).empty(); }));
  for (const auto& [name, box] : boxes) {
    CHECK(box->metric("pbox_cluster_is_leader") == (name == leader ? 1 : 0));
    CHECK(box->metric("pbox_cluster_boxes") == 3);
    CHECK(box->metric("pbox_cluster_store_up") == 1);
  }
  const Json page = boxes_of(*boxes["a"]);
  for (const Json& listed : page["boxes"]) {
    CHECK(listed["control"] == boxes[listed["name"]]->control());
    CHECK(listed["leads"] == (listed["name"] == leader));
    CHECK(listed["data"].size() == 2);
  }

  const auto lines = listed_by(*boxes["b"]);
  REQUIRE(lines.size() == 5);
  for (size_t row = 0; row < 3; ++row) {
    const std::string name(1, "abc"[row]);
    CHECK_THAT(lines[row + 1], Catch::StartsWith(name) && Contains(boxes[name]->control()));
    CHECK((lines[row + 1].find(" yes ") != std::string::npos) == (name == leader));
  }
  CHECK_THAT(lines[4], Contains("cluster rack, leader " + leader + ", since "));

  const std::string other = leader == "a" ? "b" : "a";
  SteadyTraining training({.box = boxes[other]->control()});
  training.rounds();
  boxes[leader]->program().signal(SIGKILL);
  training.rounds();
  boxes.erase(leader);
  std::string next;
  REQUIRE(await([&] { return !(next = agreed_leader(all())).empty(); }));
  CHECK(next != leader);
  CHECK(boxes[next]->metric("pbox_cluster_is_leader") == 1);
  training.rounds();
  CHECK(boxes[other]->metric("pbox_jobs_failed_total") == 0);
  CHECK(boxes[other]->metric("pbox_workers_lost_total") == 0);

  // Restarted under its name it is a member again and does not take the lead.
  boxes[leader] = start_box(etcd, leader);
  REQUIRE(await([&] { return !agreed_leader(all()).empty(); }));
  CHECK(await([&] { return agreed_leader(all()) == next; }));
  training.rounds();
  // A box that is shut down disappears from the others' lists at once.
  boxes[leader]->program().signal(SIGTERM);
  CHECK(boxes[leader]->program().wait_exit(kDeadlineMs) == 0);
  boxes.erase(leader);
  CHECK(await([&] { return agreed_leader(all()) == next; }));
  training.kill();
}

TEST_CASE(
    "if etcd fails, a running job continues, a new one waits, and the box reports the failure") {
  EtcdCluster etcd(3);
  const auto box = start_box(etcd, "a");
  REQUIRE(await([&] { return agreed_leader({box.get()}) == "a"; }));
  SteadyTraining training({.box = box->control()});
  training.rounds();
  for (size_t member = 0; member < etcd.size(); ++member) etcd.kill(member);
  REQUIRE(await([&] { return box->metric("pbox_cluster_store_up") == 0; }));
  CHECK(box->program().await_errors("cluster_store: the cluster store is down", kDeadlineMs));
  CHECK_THAT(box->program().errors(), Contains("[cluster] endpoints"));
  training.rounds();
  auto next = start_sums({.box = box->control(), .job = "next", .rounds = 2});
  // When its lease runs out, it must stop claiming that it leads.
  REQUIRE(await([&] { return box->metric("pbox_cluster_is_leader") == 0; }));
  CHECK(boxes_of(*box)["store_up"] == false);
  CHECK_THAT(listed_by(*box).back(), Contains("the cluster store is down"));
  CHECK(box->metric("pbox_cluster_store_errors_total") > 0);

  for (size_t member = 0; member < etcd.size(); ++member) etcd.start(member);
  REQUIRE(await([&] { return box->metric("pbox_cluster_store_up") == 1; }));
  REQUIRE(await([&] { return box->metric("pbox_cluster_is_leader") == 1; }));
  // each box learns it through its own watch
  CHECK(await([&] { return agreed_leader({box.get()}) == "a"; }));
  CHECK(collect(next).failure == "");
  training.rounds();
  require_undisturbed(*box);
  training.kill();
}

TEST_CASE(
    "a box that starts without etcd admits jobs once etcd is up, in the epochs that it has left") {
  EtcdCluster etcd(1);
  const std::string state = etcd.folder() + "/state-of-a";
  uint32_t epoch = 0;
  {
    const auto box = start_box(etcd, "a", state);
    CHECK(run_sums({.box = box->control(), .job = "before", .rounds = 2}).failure == "");
    epoch = epochs_of(*box, "before").second;
    CHECK(epoch > 0);
  }
  etcd.kill(0);
  const auto box = start_box(etcd, "a", state);
  CHECK(box->program().await_errors("the cluster store is down", kDeadlineMs));
  auto waiting = start_sums({.box = box->control(), .job = "waits", .rounds = 2});
  CHECK(box->metric("pbox_cluster_store_up") == 0);
  etcd.start(0);
  CHECK(collect(waiting).failure == "");
  CHECK(epochs_of(*box, "waits").first == epoch + 1);
  const auto newcomer = start_box(etcd, "b");
  CHECK(await([&] { return !agreed_leader({box.get(), newcomer.get()}).empty(); }));
  CHECK(box->metric("pbox_cluster_store_up") == 1);
}

}  // namespace pbox::test
