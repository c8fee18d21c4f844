// Tries every pair of features with a job of two ranks on a real box, to find which go together.
// docs/composition.md is the outcome. PBOX_WRITE_COMPOSITION=1 rewrites that page.
#include <stdlib.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "tests/integration/composition_features.h"
#include "tests/integration/composition_page.h"
#include "tests/integration/composition_trial.h"
#include "tests/support/box_cluster.h"
#include "tests/support/daemon.h"
#include "tests/support/key_folder.h"
#include "tests/support/sums.h"

namespace pbox::test {
namespace {

constexpr char kWorks[] = "";
constexpr uint32_t kSettlingRounds = 4;  // more than the staleness of any trial

// One rank's own view of a trial.
struct RankPlan {
  std::string box;
  std::string job;
  std::string keys;
  uint32_t rank = 0;
  bool rejoins = false;
  std::string restore = {};
  bool ends_in_the_middle = false;
};

float gradient_of(uint32_t rank) {
  return rank == 0 ? 1 : 32;
}

// Runs a round of zeros, except for one value of rank 1 that is beyond the bound and must not reach
// the result. Returns false if the guard has ended the job.
bool survives_guard(const AbiWorker& worker, const Trial& trial, uint32_t tensor, uint32_t rank,
                    std::vector<unsigned char>& result) {
  const bool optimizes = trial.options.mode == PBOX_MODE_OPTIMIZE;
  std::vector<float> gradient(kElements, 0);
  const auto expected = optimizes ? result : encode(trial.dtype, gradient);
  if (rank == 1) gradient[kElements / 2] = 2 * kBound;
  const auto input = encode(trial.dtype, gradient);
  const pbox_status status =
      is_collective(trial)
          ? run_collective(worker, trial, PBOX_ALL_REDUCE, kElements, input, result)
          : worker.push_pull_and_wait(tensor, input.data(), result.data());
  if (trial.options.guard == PBOX_GUARD_REJECT && !optimizes) {
    worker.must_be(PBOX_INVALID_ARGUMENT, status);
    return false;
  }
  worker.must(status);
  const bool is_kept_out = trial.compression != PBOX_COMPRESSION_NONE
                               ? is_near(result, std::vector<float>(kElements, 0), kBound)
                               : result == expected;
  require(is_kept_out, "the guard has not kept a value out of the result");
  return true;
}

// Sets the tensor's rows and compression as the trial says. Returns false if the library refuses.
bool may_set(const AbiWorker& worker, const Trial& trial, uint32_t tensor) {
  pbox_context* const context = worker.context();
  if (trial.has_table && pbox_set_tensor_rows(context, tensor, kRowElements) != PBOX_OK) {
    return false;
  }
  return trial.compression == PBOX_COMPRESSION_NONE ||
         pbox_set_tensor_compression(context, tensor, trial.compression) == PBOX_OK;
}

AbiWorker open_worker(const Trial& trial, const RankPlan& plan) {
  return AbiWorker({.box = plan.box,
                    .job = plan.job,
                    .rank = plan.rank,
                    .world_size = 2,
                    .adjust = [&](pbox_options& options) {
                      const pbox_options given = options;
                      options = trial.options;
                      options.box = given.box;
                      options.job = given.job;
                      options.rank = given.rank;
                      options.world_size = given.world_size;
                      options.rejoin = plan.rejoins ? 1 : 0;
                      options.restore = plan.restore.c_str();
                      options.keys = plan.keys.c_str();
                    }});
}

// Rounds 1 and 2 have a gradient of each rank. The box's optimizer is SGD with learning rate 1 on
// weights that begin as 0, so at the end the weights tell whose gradients are in them.
void run_rank(Trial trial, const RankPlan& plan, Line& line) {
  trial.options.rank = plan.rank;
  const AbiWorker worker = open_worker(trial, plan);
  const bool optimizes = trial.options.mode == PBOX_MODE_OPTIMIZE;
  const uint32_t tensor =
      is_collective(trial) ? 0 : worker.tensor("tensor", kElements, trial.dtype);
  Beside beside(worker, trial);
  if (!may_set(worker, trial, tensor) || beside.set_model() != PBOX_OK) {
    return line.say(std::string("refused ") + pbox_last_error(worker.context()));
  }
  if (optimizes) {
    pbox_optimizer_options sgd;
    pbox_optimizer_options_init(&sgd, PBOX_SGD);
    sgd.learning_rate = 1;
    worker.must(pbox_set_optimizer(worker.context(), &sgd));
  }
  if (pbox_join(worker.context()) != PBOX_OK) {
    return line.say(std::string("refused ") + pbox_last_error(worker.context()));
  }
  const std::vector<float> zeros(kElements, 0);
  std::vector<unsigned char> result = encode(trial.dtype, zeros);
  if (optimizes) {
    worker.must(pbox_init_weights(worker.context(), tensor, result.data(), nullptr, nullptr));
    worker.wait(tensor);
    beside.begin();
  }
  const float own = gradient_of(plan.rank), both = gradient_of(0) + gradient_of(1);
  const auto expect = [&](float value) {
    const std::vector<float> values(kElements, value);
    // A value is rounded by at most a step of its block: 0.5 (q8) and 8 (q4) in the last round. The
    // residues may add as much again.
    const bool is_right =
        trial.compression == PBOX_COMPRESSION_NONE
            ? result == result_of(trial, value)
            : is_near(result, values, trial.compression == PBOX_COMPRESSION_Q4 ? 20 : 2);
    require(is_right, "the result is wrong");
  };
  const bool is_restored = !plan.restore.empty();
  if (is_restored) require(worker.statistics().restored_snapshot > 0, "nothing was restored");
  if (!plan.rejoins) push(worker, trial, tensor, own, result);
  if (!plan.rejoins) beside.push(own);
  if (!plan.rejoins && !optimizes) expect(both);
  line.say("half");
  line.await_go();
  if (plan.ends_in_the_middle) return worker.leave();
  push(worker, trial, tensor, own, result);
  beside.push(own);
  if (!optimizes) expect(both);
  worker.must(pbox_barrier(worker.context(), 0));
  if (optimizes) {
    for (uint32_t round = 0; round < kSettlingRounds; ++round) {
      push(worker, trial, tensor, 0, result);
      beside.push(0);
    }
    const float sum = is_restored ? -3 * both : -2 * both;
    beside.expect(sum);
    expect(sum);
  }
  const bool is_guarded = trial.options.guard != PBOX_GUARD_FLAG;
  if (is_guarded && !survives_guard(worker, trial, tensor, plan.rank, result)) return;
  worker.leave();
}

constexpr char kWorker[] = "pbox://rack/tenant/acme/job/*/rank/*";

Arguments key_arguments(Keys keys, const std::string& name, const std::string& folder) {
  if (keys == Keys::kNone) return {};
  return {"--box.name=" + name, "--security.keys=" + folder,
          keys == Keys::kEncrypt ? "--security.encrypt=true" : "--security.encrypt=false"};
}

// A box, and one that forwards its sums to it, both with keys or both without.
class Site {
 public:
  Site(Keys keys, const tls::KeyPair& authority)
      : plain_keys_(authority, "pbox://rack/box/plain"),
        rack_keys_(authority, "pbox://rack/box/rack"),
        worker_keys_(authority, kWorker),
        keys_(keys),
        plain_(arguments("plain", plain_keys_, {"--snapshots.directory=" + snapshots_.path()})),
        rack_(arguments("rack", rack_keys_,
                        {"--upstream.box=" + plain_.control(), "--upstream.world_size=1"})) {}

  const Daemon& box(const Trial& trial) const { return trial.relayed ? rack_ : plain_; }
  const Daemon& plain() const { return plain_; }
  // Workers' folder of keys; empty without keys.
  std::string worker_keys() const { return keys_ == Keys::kNone ? "" : worker_keys_.path(); }

 private:
  Arguments arguments(const std::string& name, const KeyFolder& own, Arguments others) const {
    const Arguments with_keys = key_arguments(keys_, name, own.path());
    others.insert(others.end(), with_keys.begin(), with_keys.end());
    return others;
  }

  TemporaryFolder snapshots_;
  KeyFolder plain_keys_, rack_keys_, worker_keys_;
  Keys keys_;
  Daemon plain_;
  Daemon rack_;
};

class Table {
 public:
  // Returns kWorks, or the words with which the pair is refused.
  std::string try_pair(const Feature& one, const Feature& other);

 private:
  std::string next_job() { return "acme/trial-" + std::to_string(jobs_++); }
  std::string run(const Trial& trial, const std::string& restore, bool ends_in_the_middle);
  std::string in_the_middle(const Trial& trial, const std::string& restore,
                            std::vector<WorkerProcess>& ranks);
  std::string take_snapshot(const Daemon& box);
  // The path of the job's page, whose name contains a slash.
  std::string page(const std::string& name) const {
    std::string job = job_;
    job.replace(job.find('/'), 1, "%2F");
    return "/api/v1/jobs/" + job + "/" + name;
  }
  const Site& site(const Trial& trial) const { return sites_[static_cast<size_t>(trial.keys)]; }

  tls::KeyPair authority_ = authority();
  std::array<Site, 3> sites_{
      {{Keys::kNone, authority_}, {Keys::kAuthenticate, authority_}, {Keys::kEncrypt, authority_}}};
  std::string job_;
  uint32_t jobs_ = 0;
};

// Returns the words without what differs from run to run, and from model to model.
std::string general(std::string text, const std::string& job) {
  // An HTTP answer adds the routes to the reason, and ends its line.
  text.resize(std::min({text.size(), text.find("; this server has"), text.find('\n')}));
  for (const char* model : {"asp", "ssp", "essp", "pssp", "dpssp", "drop", "adaptive"}) {
    for (const std::string before :
         {"sync.model ", "with sync.model bsp, not with ", "needs sync model bsp: with ",
          "needs sync model bsp or drop: with "}) {
      const size_t at = text.find(before + model);
      const size_t end = at + before.size() + std::string(model).size();
      const bool is_whole = at != std::string::npos && (end == text.size() || !isalpha(text[end]));
      if (is_whole) text.replace(at + before.size(), std::string(model).size(), "MODEL");
    }
  }
  const std::string title = "job '" + job + "'";
  for (size_t at = text.find(title); at != std::string::npos; at = text.find(title)) {
    const bool leads = at == 0 && text.compare(title.size(), 2, ": ") == 0;
    text.replace(at, title.size() + (leads ? 2 : 0), leads ? "" : "the job");
  }
  return text;
}

std::string Table::try_pair(const Feature& one, const Feature& other) {
  Trial trial;
  pbox_options_init(&trial.options);
  trial.options.port = port_under_test();
  for (const Feature* feature : {&one, &other}) {
    if (feature->needs_optimize) trial.options.mode = PBOX_MODE_OPTIMIZE;
    if (feature->needs_no_recovery) trial.options.recovery = PBOX_RECOVERY_NONE;
  }
  one.apply(trial);
  other.apply(trial);
  job_ = next_job();
  if (!trial.restores) return run(trial, "", false);
  std::string first = run(trial, "", true);
  if (first != kWorks) {
    job_ = next_job();
    const std::string second = run(trial, "latest", false);
    return second == kWorks ? first : second;
  }
  if (!site(trial).plain().await_no_jobs(kDeadlineMs)) return "the first run does not end";
  return run(trial, "latest", false);
}

std::string Table::run(const Trial& trial, const std::string& restore, bool ends_in_the_middle) {
  const Daemon& box = site(trial).box(trial);
  std::vector<WorkerProcess> ranks;
  for (const uint32_t rank : {0u, 1u}) {
    const RankPlan plan{.box = box.control(),
                        .job = job_,
                        .keys = site(trial).worker_keys(),
                        .rank = rank,
                        .restore = restore,
                        .ends_in_the_middle = ends_in_the_middle};
    ranks.emplace_back([&, plan](Line& line) { run_rank(trial, plan, line); });
  }
  for (WorkerProcess& rank : ranks) {
    const std::string said = rank.heard().value_or("nothing");
    if (said.rfind("refused ", 0) == 0) return general(said.substr(8), job_);
    if (said != "half") return said;
  }
  if (ends_in_the_middle) {
    if (std::string failed = take_snapshot(site(trial).plain()); failed != kWorks)
      return general(failed, job_);
  }
  if (!ends_in_the_middle) {
    const std::string refused = in_the_middle(trial, restore, ranks);
    if (refused != kWorks) return general(refused, job_);
  }
  for (WorkerProcess& rank : ranks) rank.go();
  for (WorkerProcess& rank : ranks) {
    if (const std::string failed = rank.finish(); !failed.empty()) return "FAILED: " + failed;
  }
  return kWorks;
}

std::string Table::in_the_middle(const Trial& trial, const std::string& restore,
                                 std::vector<WorkerProcess>& ranks) {
  const Daemon& box = site(trial).box(trial);
  if (trial.traced) {
    const std::string answer = box.post(page("trace"), R"({"seconds": 1})");
    if (answer != "{}\n") return answer;
  }
  if (trial.rejoins) {
    const RankPlan plan{.box = box.control(),
                        .job = job_,
                        .keys = site(trial).worker_keys(),
                        .rank = 1,
                        .rejoins = true,
                        .restore = restore};
    ranks.pop_back();  // kills rank 1
    ranks.emplace_back([&, plan](Line& line) { run_rank(trial, plan, line); });
    const std::string said = ranks.back().heard().value_or("nothing");
    if (said.rfind("refused ", 0) == 0) return said.substr(8);
    if (said != "half") return said;
  }
  return kWorks;
}

std::string Table::take_snapshot(const Daemon& box) {
  const std::string path = page("snapshot");
  const std::string begun = box.post(path, R"({"timeout_s": 30})");
  if (begun != "{}\n") return begun;
  std::string state;
  const bool is_over = await([&] {
    const auto view = nlohmann::json::parse(box.get(path));
    state = view.value("state", "");
    return state == "done" || state == "failed";
  });
  return is_over && state == "done" ? kWorks : "the snapshot " + state;
}

// Pairs by the words that refuse them: {feature, words} -> the features that it does not go with.
using Refusals = std::map<std::pair<size_t, std::string>, std::vector<size_t>>;

std::string names_of(const std::vector<size_t>& features) {
  std::string text;
  for (const size_t feature : features) {
    text.append(text.empty() ? "`" : ", `").append(kFeatures[feature].name).append("`");
  }
  return text;
}

std::string page_of(const Refusals& refusals) {
  std::ostringstream page;
  page << kHead;
  constexpr size_t kColumns = 100;
  std::string group, line;
  for (const Feature& feature : kFeatures) {
    const std::string name = '`' + std::string(feature.name) + '`';
    const bool goes_on = group == feature.group;
    if (goes_on) line += ',';
    if (line.size() + name.size() + 2 > kColumns || !goes_on) {
      if (!line.empty()) page << line << "\n";
      line = goes_on ? " " : "*";
    }
    line += ' ' + name;
    group = feature.group;
  }
  page << line << "\n\n## Refused pairs\n\n| feature | with | the box says |\n|---|---|---|\n";
  // Features that are refused with the same others and the same words share a row.
  std::map<std::pair<std::vector<size_t>, std::string>, std::vector<size_t>> rows;
  for (const auto& [entry, others] : refusals) {
    rows[{others, entry.second}].push_back(entry.first);
  }
  for (const auto& [row, features] : rows) {
    page << "| " << names_of(features) << " | " << names_of(row.first) << " | " << row.second
         << " |\n";
  }
  page << kTail;
  return page.str();
}

bool is_tried(const Feature& one, const Feature& other) {
  const auto is = [&](const char* first, const char* second) {
    return std::string(one.name) == first && std::string(other.name) == second;
  };
  return std::string(one.group) != other.group &&
         !is("on_worker_lost abort", "a rank that rejoins");
}

}  // namespace

TEST_CASE(
    "docs/composition.md states which pairs of features work, and the words that refuse others") {
  Table table;
  Refusals refusals;
  for (size_t one = 0; one < std::size(kFeatures); ++one) {
    for (size_t other = one + 1; other < std::size(kFeatures); ++other) {
      if (!is_tried(kFeatures[one], kFeatures[other])) continue;
      const std::string words = table.try_pair(kFeatures[one], kFeatures[other]);
      if (words == kWorks || words.find("replicas 1 needs other boxes") != std::string::npos) {
        continue;
      }
      INFO(kFeatures[one].name << " with " << kFeatures[other].name);
      CHECK_THAT(words, !Catch::StartsWith("FAILED"));
      refusals[{one, words}].push_back(other);
    }
  }
  const std::string found = page_of(refusals);
  if (getenv("PBOX_WRITE_COMPOSITION") != nullptr) std::ofstream(PBOX_COMPOSITION_PAGE) << found;
  std::ostringstream stated;
  stated << std::ifstream(PBOX_COMPOSITION_PAGE).rdbuf();
  CHECK(found == stated.str());
}

}  // namespace pbox::test
