#include "tests/support/box_cluster.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace pbox::test {
namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

float pushed(uint32_t rank, uint32_t round, size_t tensor) {
  return static_cast<float>((rank + 1) * (round % 1000 + 1) + tensor);
}

float summed(uint32_t ranks, uint32_t round, size_t tensor) {
  float sum = 0;
  for (uint32_t rank = 0; rank < ranks; ++rank) sum += pushed(rank, round, tensor);
  return sum;
}

void train_round(const SteadyTraining::Options& options, const AbiWorker& worker,
                 const std::vector<uint32_t>& tensors, uint32_t rank, uint32_t round) {
  std::vector<std::vector<float>> inputs, outputs;
  for (size_t tensor = 0; tensor < tensors.size(); ++tensor) {
    inputs.emplace_back(options.elements[tensor], pushed(rank, round, tensor));
    outputs.emplace_back(options.elements[tensor], -1.0f);
  }
  for (size_t tensor = 0; tensor < tensors.size(); ++tensor) {
    worker.push_pull(tensors[tensor], inputs[tensor].data(), outputs[tensor].data());
  }
  worker.wait_all();
  for (size_t tensor = 0; tensor < tensors.size(); ++tensor) {
    const float sum = summed(options.ranks, round, tensor);
    const auto wrong = std::find_if(outputs[tensor].begin(), outputs[tensor].end(),
                                    [sum](float value) { return value != sum; });
    require(wrong == outputs[tensor].end(), "round " + std::to_string(round) + ", tensor " +
                                                std::to_string(tensor) +
                                                ": an element is not the sum");
  }
}

void train(const SteadyTraining::Options& options, uint32_t rank, const Progress& progress,
           Line& line) {
  const AbiWorker worker({.box = options.box,
                          .job = options.job,
                          .rank = rank,
                          .world_size = options.ranks,
                          .adjust = options.adjust});
  std::vector<uint32_t> tensors;
  for (size_t tensor = 0; tensor < options.elements.size(); ++tensor) {
    tensors.push_back(worker.tensor("weights." + std::to_string(tensor), options.elements[tensor]));
  }
  worker.join();
  line.say("joined");
  for (uint32_t round = 0;;) {
    line.await_go();
    double longest_s = 0;
    const uint64_t recoveries = worker.statistics().recoveries;
    for (uint32_t count = 0; count < options.rounds; ++count, ++round) {
      const auto begin = Clock::now();
      train_round(options, worker, tensors, rank, round);
      longest_s = std::max(longest_s, std::chrono::duration<double>(Clock::now() - begin).count());
      progress.advance(rank);
      if (options.pause_us > 0) usleep(options.pause_us);
    }
    line.say(std::to_string(longest_s) + " " +
             std::to_string(worker.statistics().recoveries - recoveries));
  }
}

// Returns what `box` lists about the box `name`; null if it does not list it.
Json listed(const Daemon& box, const std::string& name) {
  const Json page = boxes_of(box);
  for (const Json& each : page["boxes"]) {
    if (each["name"] == name) return each;
  }
  return nullptr;
}

std::string said(WorkerProcess& rank) {
  const auto line = rank.heard();
  if (!line) throw std::runtime_error("a rank has ended or does not answer");
  if (line->starts_with("FAILED")) throw std::runtime_error(*line);
  return *line;
}

}  // namespace

bool await(const std::function<bool()>& done) {
  const auto end = Clock::now() + std::chrono::milliseconds(kDeadlineMs);
  while (!done()) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return true;
}

std::unique_ptr<Daemon> start_box(const EtcdCluster& etcd, const std::string& name,
                                  const std::string& state, const std::vector<std::string>& flags) {
  std::string endpoints;
  for (const auto& endpoint : etcd.endpoints()) {
    endpoints += (endpoints.empty() ? "" : ",") + endpoint;
  }
  Arguments arguments = {"--box.name=" + name,
                         "--cluster.store=etcd",
                         "--cluster.endpoints=" + endpoints,
                         "--cluster.name=rack",
                         "--cluster.lease_ttl_s=2",
                         "--pipeline.pin=off",
                         "--cluster.state_directory=" + state};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  return std::make_unique<Daemon>(arguments);
}

Json boxes_of(const Daemon& box) {
  return Json::parse(box.get("/api/v1/boxes"));
}

void drain(const Daemon& at, const std::string& box, bool draining) {
  const std::string body = draining ? R"({"draining": true})" : R"({"draining": false})";
  require_contains(at.post("/api/v1/boxes/" + box + "/drain", body), "\"boxes\"");
}

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

BoxCluster::BoxCluster(const EtcdCluster& etcd, const std::vector<std::string>& names,
                       std::vector<std::string> flags)
    : etcd_(etcd), flags_(std::move(flags)) {
  for (const auto& name : names) launch(name);
  leader();
}

// A killed box stays listed until its lease expires. The restarted box is listed with a different
// incarnation.
void BoxCluster::start(const std::string& name) {
  Json former;
  if (!boxes_.empty()) former = listed(*boxes_.begin()->second, name);
  launch(name);
  const auto lists_new_one = [&](const Daemon* box) {
    const Json now = listed(*box, name);
    return !now.is_null() && (former.is_null() || now["incarnation"] != former["incarnation"]);
  };
  const auto everywhere = [&] {
    const auto boxes = all();
    return std::all_of(boxes.begin(), boxes.end(), lists_new_one);
  };
  if (!await(everywhere)) throw std::runtime_error("box " + name + " has not registered");
  leader();
}

void BoxCluster::launch(const std::string& name) {
  auto flags = flags_;
  if (ports_.contains(name)) flags.push_back("--control.port=" + ports_[name]);
  boxes_[name] = start_box(etcd_, name, "none", flags);
  const std::string& control = boxes_[name]->control();
  ports_[name] = control.substr(control.rfind(':') + 1);
}

std::vector<const Daemon*> BoxCluster::all() const {
  std::vector<const Daemon*> list;
  for (const auto& [name, box] : boxes_) list.push_back(box.get());
  return list;
}

std::string BoxCluster::leader() const {
  std::string leader;
  if (!await([&] { return !(leader = agreed_leader(all())).empty(); })) {
    throw std::runtime_error("the boxes do not agree on a leader");
  }
  return leader;
}

std::string BoxCluster::control() const {
  std::string list;
  for (const auto& [name, box] : boxes_) list += (list.empty() ? "" : ",") + box->control();
  return list;
}

size_t BoxCluster::parts(const std::string& name) const {
  const Json box = listed(*boxes_.begin()->second, name);
  if (box.is_null()) throw std::runtime_error("box " + name + " is not listed");
  return box["parts"];
}

SteadyTraining::SteadyTraining(const Options& options) : progress_(options.ranks) {
  for (uint32_t rank = 0; rank < options.ranks; ++rank) {
    ranks_.emplace_back(
        [=, progress = progress_](Line& line) { train(options, rank, progress, line); });
  }
  for (WorkerProcess& rank : ranks_) {
    if (const auto word = said(rank); word != "joined") throw std::runtime_error(word);
  }
}

void SteadyTraining::begin_rounds() {
  begun_at_ = progress_.least();
  for (const WorkerProcess& rank : ranks_) rank.go();
}

void SteadyTraining::end_rounds() {
  longest_round_s_ = 0;
  recoveries_ = 0;
  for (WorkerProcess& rank : ranks_) {
    std::istringstream words(said(rank));
    double longest_s = 0;
    uint64_t recoveries = 0;
    require(bool(words >> longest_s >> recoveries), "a rank says neither time nor recoveries");
    longest_round_s_ = std::max(longest_round_s_, longest_s);
    recoveries_ += recoveries;
  }
}

void SteadyTraining::kill() const {
  for (const WorkerProcess& rank : ranks_) rank.signal(SIGKILL);
}

}  // namespace pbox::test
