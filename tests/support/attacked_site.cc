#include "tests/support/attacked_site.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace pbox::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr float kLearningRate = 0.5f;
constexpr uint32_t kRounds = 150;
constexpr uint32_t kPauseUs = 2'000;

Arguments with(Arguments first, const Arguments& more) {
  first.insert(first.end(), more.begin(), more.end());
  return first;
}

// Returns a line for each file below a folder: its path, its size, and a hash of its contents.
std::string contents_of(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    files.push_back(entry.path().string() + " " + std::to_string(bytes.size()) + " " +
                    std::to_string(std::hash<std::string>()(bytes)) + "\n");
  }
  std::sort(files.begin(), files.end());
  std::string all;
  for (const std::string& file : files) all += file;
  return all;
}

// Returns the facts about a job that its own rounds do not change.
Json lasting_facts(const Json& job) {
  Json facts;
  for (const char* key :
       {"name", "part_count", "parts", "state", "mode", "backup", "reduction", "optimizer",
        "priority_policy", "priority_source", "delivery", "numerics", "world_size", "tensor_count",
        "element_count", "chunk_count", "chunk_bytes", "fragment_bytes", "memory_bytes"}) {
    facts[key] = job.at(key);
  }
  for (const Json& worker : job.at("workers")) {
    facts["ranks"].push_back(
        {worker.at("rank"), worker.at("state"), worker.at("nonfinite_fragments")});
  }
  return facts;
}

// Runs the rank with weights. In its only step it pushes 1 for each weight, and each weight is 1.
void hold(const WorkerOptions& options, Line& line) {
  const AbiWorker worker(options);
  const uint32_t tensor = worker.tensor(kSecretTensor, kSecretElements);
  std::vector<float> weights(kSecretElements, 1.0f);
  worker.join_with_sgd(kLearningRate, tensor, weights);
  line.say("joined");
  line.await_go();
  const std::vector<float> gradient(kSecretElements, 1.0f);
  worker.push_pull(tensor, gradient.data(), weights.data());
  worker.wait(tensor);
  const bool are_right = std::all_of(weights.begin(), weights.end(),
                                     [](float weight) { return weight == 1.0f - kLearningRate; });
  require(are_right, "the weights are not those of the rank's own step");
  line.say("stepped");
  line.await_go();
}

}  // namespace

AttackedSite::AttackedSite(const Arguments& flags)
    : box_keys_(signer_, "pbox://rack/box/a"),
      honest_keys_(signer_, "pbox://rack/tenant/acme/job/*/rank/0-1"),
      stranger_keys_(signer_, "pbox://rack/tenant/evil/job/*/rank/*"),
      honest_(honest_keys_.load()),
      stranger_(stranger_keys_.load()),
      daemon_(with({"--box.name=a", "--security.keys=" + box_keys_.path(),
                    "--cluster.state_directory=" + epochs_.path(),
                    "--snapshots.directory=" + snapshots_.path()},
                   flags)),
      training_(training_options()),
      weights_(hold_weights()) {
  require(weights_.heard() == "joined", "the rank with weights has not joined");
  snapshot();
  before_ = state();
  require_contains(before_, kHonestJob);
  require_contains(before_, kWeightsJob);
  course_before_ = course_of_jobs();
  training_.begin_rounds();
  training_.await_rounds(1);
}

SteadyTraining::Options AttackedSite::training_options() const {
  return {.box = daemon_.control(),
          .job = kHonestJob,
          .rounds = kRounds,
          .pause_us = kPauseUs,
          .adjust = [this](pbox_options& options) { options.keys = honest_keys_.path().c_str(); }};
}

WorkerProcess AttackedSite::hold_weights() const {
  const WorkerOptions options = {
      .box = daemon_.control(), .job = kWeightsJob, .adjust = [this](pbox_options& chosen) {
        chosen.keys = honest_keys_.path().c_str();
        chosen.mode = PBOX_MODE_OPTIMIZE;
      }};
  return WorkerProcess([options](Line& line) { hold(options, line); });
}

void AttackedSite::snapshot() const {
  daemon_.post("/api/v1/jobs/acme%2Fweights/snapshot", R"({"timeout_s": 60})");
  require(await([this] { return daemon_.metric("pbox_snapshots_total") == 1; }),
          "there is no snapshot");
}

std::string AttackedSite::counts(const std::vector<std::string>& metrics) const {
  std::string all;
  for (const std::string& metric : metrics) {
    all += metric + " " + std::to_string(daemon_.metric(metric)) + "\n";
  }
  return all;
}

// Returns a text that changes only if some job begins, or loses a rank.
std::string AttackedSite::course_of_jobs() const {
  return contents_of(epochs_.path()) +
         counts({"pbox_workers_lost_total", "pbox_workers_back_total",
                 "pbox_workers_excluded_total", "pbox_jobs_recovered_total",
                 "pbox_optimizer_restarts_total"});
}

std::string AttackedSite::state() const {
  std::string all = contents_of(snapshots_.path());
  const Json page = Json::parse(daemon_.get("/api/v1/jobs"));
  for (const Json& job : page.at("jobs")) {
    if (job.at("name").get<std::string>().starts_with("acme/")) all += lasting_facts(job).dump(1);
  }
  all += counts({"pbox_snapshots_total", "pbox_snapshots_failed_total"});
  return all;
}

void AttackedSite::begin_more_rounds() {
  training_.end_rounds();
  training_.begin_rounds();
}

void AttackedSite::check() {
  training_.end_rounds();
  training_.rounds();
  weights_.go();
  require(weights_.heard() == "stepped", "the rank with weights cannot step");
  const std::string after = state();
  require(after == before_, "the box's state was\n" + before_ + "and is\n" + after);
  require(has_other_jobs_ || course_of_jobs() == course_before_,
          "an attack has begun a job, or taken a rank from one");
}

}  // namespace pbox::test
