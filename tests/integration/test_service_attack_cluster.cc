// Attacks on two boxes with keys. Each has parts of a job and backup copies of the other's parts.
// No other tenant can move a part, or take or end a copy. When a box is lost, the job continues
// with exact results.
#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>

#include "nic/wire/control_versions.h"
#include "tests/support/box_cluster.h"
#include "tests/support/key_folder.h"
#include "tests/support/secure_peer.h"

namespace pbox::test {
namespace {

using Catch::Contains;
using proto::WorkerMessage;
using Json = nlohmann::json;

constexpr char kJob[] = "acme/weights";
constexpr uint64_t kElements = 54'321;
constexpr float kLearningRate = 0.25f;

// Takes a step on each go(), and checks that only this rank's steps have changed the weights.
void step(const WorkerOptions& options, Line& line) {
  const AbiWorker worker(options);
  const uint32_t tensor = worker.tensor("t", kElements);
  std::vector<float> weights(kElements, 1.0f);
  const std::vector<float> gradient(kElements, 1.0f);
  worker.join_with_sgd(kLearningRate, tensor, weights);
  for (float expected = 1.0f;;) {
    line.say("ready");
    line.await_go();
    worker.push_pull(tensor, gradient.data(), weights.data());
    worker.wait(tensor);
    expected -= kLearningRate;
    require(std::all_of(weights.begin(), weights.end(),
                        [expected](float weight) { return weight == expected; }),
            "the weights are not those of the rank's own steps");
    require(worker.statistics().optimizer_restarts == 0, "the optimizer has lost its state");
  }
}

class AttackedCluster {
 public:
  AttackedCluster()
      : etcd_(1),
        keys_a_(signer_, "pbox://rack/box/a"),
        keys_b_(signer_, "pbox://rack/box/b"),
        honest_(signer_, "pbox://rack/tenant/acme/job/*/rank/*"),
        stranger_(signer_, "pbox://rack/tenant/evil/job/*/rank/*"),
        a_(start("a", keys_a_)),
        b_(start("b", keys_b_)) {
    require(await([this] { return !agreed_leader({&*a_, &*b_}).empty(); }), "no leader");
    const WorkerOptions options = {.box = a_->control() + "," + b_->control(),
                                   .job = kJob,
                                   .adjust = [this](pbox_options& chosen) {
                                     chosen.keys = honest_.path().c_str();
                                     chosen.mode = PBOX_MODE_OPTIMIZE;
                                     chosen.replicas = 1;
                                   }};
    rank_.emplace([options](Line& line) { step(options, line); });
    rounds();
    require(await([this] { return all_have_copies(); }), "parts have no copies");
    before_ = state();
  }

  const KeyFolder& stranger() const { return stranger_; }
  const KeyFolder& honest() const { return honest_; }
  std::vector<const Daemon*> boxes() const { return {&*a_, &*b_}; }

  bool is_unchanged() const { return state() == before_; }
  // Checks that nothing has changed, and that the copies are whole: after the loss of box a the job
  // continues with the same weights.
  void check() {
    CHECK(state() == before_);
    rank_->go();
    rounds();
    a_.reset();
    rank_->go();
    rounds();
  }

 private:
  std::unique_ptr<Daemon> start(const std::string& name, const KeyFolder& keys) {
    return start_box(etcd_, name, "none",
                     {"--cluster.rebalance=false", "--security.keys=" + keys.path()});
  }
  void rounds() {
    const auto said = rank_->heard();
    require(said == "ready", said.value_or("the rank has ended"));
  }
  static Json jobs_of(const Daemon& box) { return Json::parse(box.get("/api/v1/jobs")).at("jobs"); }
  bool all_have_copies() const {
    uint64_t without = 0;
    int64_t parts = 0, copies = 0;
    for (const Daemon* box : boxes()) {
      without += box->metric("pbox_job_parts_without_copy");
      for (const Json& job : jobs_of(*box)) {
        if (job.at("state") != "running") return false;
        (job.at("is_backup") == true ? copies : parts) +=
            static_cast<int64_t>(job.at("parts").size());
      }
    }
    return without == 0 && parts > 0 && copies == parts;
  }
  std::string state() const {
    std::string all;
    for (const Daemon* box : boxes()) {
      for (const Json& job : jobs_of(*box)) {
        for (const char* key : {"name", "part_count", "parts", "state", "is_backup", "world_size",
                                "tensor_count", "element_count", "chunk_count", "memory_bytes"}) {
          all += job.at(key).dump() + " ";
        }
      }
      const Json page = boxes_of(*box);
      for (const Json& listed : page["boxes"]) {
        all += listed["name"].dump() + listed["parts"].dump() + listed["draining"].dump() + "\n";
      }
    }
    return all;
  }

  tls::KeyPair signer_ = authority();
  EtcdCluster etcd_;
  KeyFolder keys_a_, keys_b_, honest_, stranger_;
  std::unique_ptr<Daemon> a_, b_;
  std::optional<WorkerProcess> rank_;
  std::string before_;
};

WorkerMessage question_about_copy(bool taken) {
  WorkerMessage message;
  proto::AskState& state = *message.mutable_ask_state();
  state.set_protocol_version(wire::kControlProtocolVersion);
  state.set_job(kJob);
  state.set_is_backup(true);
  state.set_taken(taken);
  return message;
}

// Returns a rank's report that it cannot reach the box.
WorkerMessage report_of_loss(const char* box, uint32_t for_ms, uint32_t rank) {
  WorkerMessage message;
  proto::AskPartMap& question = *message.mutable_ask_part_map();
  question.set_protocol_version(wire::kControlProtocolVersion);
  question.set_job(kJob);
  question.set_lost_box(box);
  question.set_lost_for_ms(for_ms);
  question.set_rank(rank);
  return message;
}

// Sends the message to each box with another tenant's keys, and expects a refusal. AskState is sent
// for several epochs.
void expect_refusals(AttackedCluster& cluster, WorkerMessage message, const std::string& text) {
  const auto keys = cluster.stranger().load();
  for (const Daemon* box : cluster.boxes()) {
    for (uint32_t epoch = 1; epoch <= 4; ++epoch) {
      if (message.has_ask_state()) message.mutable_ask_state()->set_epoch(epoch);
      SecurePeer peer(box->control(), *keys);
      const std::string said = peer.refusal(message);
      CHECK_THAT(said, Contains("do not allow") && Contains(text));
      CHECK(said.find("127.0.0.1") == std::string::npos);
    }
  }
}

}  // namespace

TEST_CASE("no tenant moves another one's parts, or takes or ends their copies") {
  AttackedCluster cluster;
  expect_refusals(cluster, question_about_copy(false), "AskState");
  expect_refusals(cluster, question_about_copy(true), "AskState");
  for (const char* lost : {"a", "b"}) {
    expect_refusals(cluster, report_of_loss(lost, UINT32_MAX, 0), "do not allow job");
  }
  WorkerMessage copy = join_of(kJob);
  copy.mutable_join()->set_mode(1);
  copy.mutable_join()->set_is_backup(true);
  expect_refusals(cluster, copy, "only boxes make replicas");
  WorkerMessage cut;
  cut.mutable_ask_cut()->set_protocol_version(wire::kControlProtocolVersion);
  cut.mutable_ask_cut()->set_job(kJob);
  cut.mutable_ask_cut()->set_snapshot(1);
  expect_refusals(cluster, cut, "AskCut");
  WorkerMessage report;
  report.mutable_ask_report()->set_protocol_version(wire::kControlProtocolVersion);
  expect_refusals(cluster, report, "AskReport");
  cluster.check();
}

TEST_CASE("no rank moves parts of its own job by saying that it cannot reach their box") {
  AttackedCluster cluster;
  const auto keys = cluster.honest().load();
  constexpr uint32_t kLostForMs = 1'600;
  const auto lie = [&](const Daemon& box, const char* lost, uint32_t rank) {
    const WorkerMessage message = report_of_loss(lost, kLostForMs, rank);
    SecurePeer peer(box.control(), *keys);
    peer.say(message);
    const auto answer = peer.heard();
    REQUIRE(answer);
    CHECK(answer->has_part_map());
  };
  // A box that has run for less than twice kLostForMs counts as restarted, and keeps its parts.
  const auto boxes = cluster.boxes();
  REQUIRE(await([&] {
    return std::all_of(boxes.begin(), boxes.end(), [](const Daemon* box) {
      return box->metric("pbox_uptime_seconds") > 2 * kLostForMs / 1000;
    });
  }));
  for (const uint32_t rank : {0u, 0u, 1u, 2u, 255u}) {
    lie(*boxes[1], "a", rank);
    lie(*boxes[0], "b", rank);
    CHECK(cluster.is_unchanged());
  }
  cluster.check();
}

}  // namespace pbox::test
