// Three boxes that agree through three members of a real etcd: boxes are killed, etcd goes away and
// comes back, and no job of a box that lives notices.
#include <signal.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "tests/support/daemon.h"
#include "tests/support/etcd_cluster.h"
#include "tests/support/sums.h"

namespace pbox::test {
namespace {

using Catch::Contains;
using Json = nlohmann::json;

bool await(const std::function<bool()>& done) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(kDeadlineMs);
  while (!done()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return true;
}

std::unique_ptr<Daemon> start_box(const EtcdCluster& etcd, const std::string& name,
                                  const std::string& state = "none") {
  std::string endpoints;
  for (const auto& endpoint : etcd.endpoints()) {
    endpoints += (endpoints.empty() ? "" : ",") + endpoint;
  }
  return std::make_unique<Daemon>(
      Arguments{"--box.name=" + name, "--cluster.store=etcd", "--cluster.endpoints=" + endpoints,
                "--cluster.name=rack", "--cluster.lease_ttl_s=2", "--pipeline.pin=off",
                "--cluster.state_directory=" + state});
}

Json boxes_of(const Daemon& box) {
  return Json::parse(box.get("/api/v1/boxes"));
}

// All of `boxes` list exactly each other and name one leader among them; its name, or empty.
std::string agreed_leader(const std::vector<const Daemon*>& boxes) {
  std::string leader;
  for (const Daemon* box : boxes) {
    const Json page = boxes_of(*box);
    if (page["boxes"].size() != boxes.size() || page["leader"].is_null()) return "";
    if (!leader.empty() && page["leader"] != leader) return "";
    leader = page["leader"];
    bool is_listed = false;
    for (const Json& listed : page["boxes"]) is_listed |= listed["name"] == leader;
    if (!is_listed) return "";
  }
  return leader;
}

// A job of two ranks that does some rounds each time it is told to, every sum checked.
class Training {
 public:
  explicit Training(const std::string& box) {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      ranks_.emplace_back([=](Line& line) { train(box, rank, line); });
    }
    for (WorkerProcess& rank : ranks_) must_hear(rank, "joined");
  }
  void rounds() {
    for (const WorkerProcess& rank : ranks_) rank.go();
    for (WorkerProcess& rank : ranks_) must_hear(rank, "done");
  }
  void finish() {
    for (WorkerProcess& rank : ranks_) rank.signal(SIGKILL);
  }

 private:
  static void must_hear(WorkerProcess& rank, const std::string& word) {
    const auto said = rank.heard();
    REQUIRE(said.has_value());
    REQUIRE(*said == word);
  }
  static void train(const std::string& box, uint32_t rank, Line& line) {
    const AbiWorker worker({.box = box, .job = "training", .rank = rank, .world_size = 2});
    const uint64_t elements = 40'000;
    const uint32_t tensor = worker.tensor("weights", elements);
    worker.join();
    line.say("joined");
    std::vector<float> output(elements);
    for (uint32_t round = 0;; ++round) {
      if (round % 50 == 0) {
        if (round != 0) line.say("done");
        line.await_go();
      }
      const std::vector<float> input(elements, static_cast<float>((rank + 1) * (round + 1)));
      worker.push_pull(tensor, input.data(), output.data());
      worker.wait(tensor);
      for (const float sum : output) {
        require(sum == static_cast<float>(3 * (round + 1)), "round " + std::to_string(round));
      }
    }
  }

  std::vector<WorkerProcess> ranks_;
};

// Of a job that has started; 0 if it has not.
uint32_t epoch_of(const Daemon& box, const std::string& job) {
  box.program().await_errors("job_started: job '" + job + "'", kDeadlineMs);
  const std::string log = box.program().errors();
  const size_t line = log.find("job_started: job '" + job + "'");
  if (line == std::string::npos) return 0;
  const std::string word = ", epoch ";
  return static_cast<uint32_t>(std::stoul(log.substr(log.find(word, line) + word.size())));
}

// What `pboxctl boxes` prints, line by line.
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

TEST_CASE("the leader is killed: another box leads, and the jobs of the others go on") {
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
  Training training(boxes[other]->control());
  training.rounds();
  boxes[leader]->program().signal(SIGKILL);
  training.rounds();
  boxes.erase(leader);
  std::string next;
  REQUIRE(await([&] { return !(next = agreed_leader(all())).empty(); }));
  CHECK(next != leader);
  CHECK(boxes[next]->metric("pbox_cluster_is_leader") == 1);
  training.rounds();
  require_undisturbed(*boxes[other]);

  // Started again under its name it is one of them, and leaves the lead where it is.
  boxes[leader] = start_box(etcd, leader);
  REQUIRE(await([&] { return !agreed_leader(all()).empty(); }));
  CHECK(await([&] { return agreed_leader(all()) == next; }));
  training.rounds();
  // One that is stopped in order is gone at once from the lists of the others.
  boxes[leader]->program().signal(SIGTERM);
  CHECK(boxes[leader]->program().wait_exit(kDeadlineMs) == 0);
  boxes.erase(leader);
  CHECK(await([&] { return agreed_leader(all()) == next; }));
  training.finish();
}

TEST_CASE("etcd goes away under a running job: it goes on, another begins, and the box says so") {
  EtcdCluster etcd(3);
  const auto box = start_box(etcd, "a");
  REQUIRE(await([&] { return agreed_leader({box.get()}) == "a"; }));
  Training training(box->control());
  training.rounds();
  for (size_t member = 0; member < etcd.size(); ++member) etcd.kill(member);
  REQUIRE(await([&] { return box->metric("pbox_cluster_store_up") == 0; }));
  CHECK(box->program().await_errors("cluster_store: the cluster store is down", kDeadlineMs));
  CHECK_THAT(box->program().errors(), Contains("[cluster] endpoints"));
  training.rounds();
  CHECK(run_sums({.box = box->control(), .job = "next", .rounds = 2}).failure == "");
  // Its lease runs out: it must not go on saying that it leads.
  REQUIRE(await([&] { return box->metric("pbox_cluster_is_leader") == 0; }));
  CHECK(boxes_of(*box)["store_up"] == false);
  CHECK_THAT(listed_by(*box).back(), Contains("the cluster store is down"));
  CHECK(box->metric("pbox_cluster_store_errors_total") > 0);

  for (size_t member = 0; member < etcd.size(); ++member) etcd.start(member);
  REQUIRE(await([&] { return box->metric("pbox_cluster_store_up") == 1; }));
  REQUIRE(await([&] { return box->metric("pbox_cluster_is_leader") == 1; }));
  CHECK(await([&] { return agreed_leader({box.get()}) == "a"; }));  // each by its own watch
  training.rounds();
  require_undisturbed(*box);
  training.finish();
}

TEST_CASE(
    "a box that starts without etcd serves from the epochs it has, else as soon as there are") {
  EtcdCluster etcd(1);
  const std::string state = etcd.folder() + "/state-of-a";
  uint32_t epoch = 0;
  {
    const auto box = start_box(etcd, "a", state);
    CHECK(run_sums({.box = box->control(), .job = "before", .rounds = 2}).failure == "");
    epoch = epoch_of(*box, "before");
    CHECK(epoch > 0);
  }
  etcd.kill(0);
  const auto box = start_box(etcd, "a", state);
  const auto newcomer = start_box(etcd, "b");
  CHECK(box->program().await_errors("the cluster store is down", kDeadlineMs));
  CHECK(run_sums({.box = box->control(), .job = "without", .rounds = 2}).failure == "");
  CHECK(epoch_of(*box, "without") == epoch + 1);
  CHECK(box->metric("pbox_cluster_store_up") == 0);

  auto waiting = start_sums({.box = newcomer->control(), .job = "waits", .rounds = 2});
  CHECK(newcomer->program().await_errors("epoch_awaited", kDeadlineMs));
  etcd.start(0);
  CHECK(collect(waiting).failure == "");
  CHECK(epoch_of(*newcomer, "waits") > epoch + 1);
  CHECK(await([&] { return !agreed_leader({box.get(), newcomer.get()}).empty(); }));
  CHECK(box->metric("pbox_cluster_store_up") == 1);
}

TEST_CASE("two boxes never give out the same epoch, whatever the jobs are called") {
  const EtcdCluster etcd(1);
  const auto first = start_box(etcd, "a");
  const auto second = start_box(etcd, "b");
  std::set<uint32_t> epochs;
  for (const char* job : {"x", "y", "z"}) {
    for (const Daemon* box : {first.get(), second.get()}) {
      REQUIRE(run_sums({.box = box->control(), .job = job, .rounds = 1}).failure == "");
      CHECK(epochs.insert(epoch_of(*box, job)).second);
    }
  }
}

TEST_CASE("two boxes of one name: the second serves, is not listed, and says why") {
  const EtcdCluster etcd(1);
  const auto first = start_box(etcd, "a");
  REQUIRE(await([&] { return agreed_leader({first.get()}) == "a"; }));
  const auto second = start_box(etcd, "a");
  CHECK(second->program().await_errors("name_taken", kDeadlineMs));
  CHECK_THAT(second->program().errors(), Contains("[box] name") && Contains(first->control()));
  REQUIRE(await([&] { return boxes_of(*second)["boxes"].size() == 1; }));
  CHECK(boxes_of(*second)["boxes"][0]["control"] == first->control());
}

}  // namespace pbox::test
