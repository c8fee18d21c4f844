#include <algorithm>
#include <catch2/catch.hpp>

#include "appliance/cluster/pipeline_balancer.h"

namespace pbox::cluster {
namespace {

using control::PartProgress;

constexpr uint32_t kPipelines = 2;
constexpr uint64_t kMilliNs = 1'000'000;

// A box whose pipelines have different speeds, and parts of one job with two ranks. A rank waits
// for a pipeline as long as the groups there take. A move takes effect at once, or is refused.
class BoxOfJobs {
 public:
  // `parts`: by part, the pipeline of each of its groups.
  explicit BoxOfJobs(std::vector<std::vector<uint32_t>> parts, uint32_t parts_elsewhere = 0) {
    for (uint32_t part = 0; part < parts.size(); ++part) {
      PartProgress& progress = parts_.emplace_back();
      progress = {.job = "train",
                  .part = part,
                  .part_count = static_cast<uint32_t>(parts.size()) + parts_elsewhere,
                  .bytes = 1'000'000 * parts[part].size(),
                  .group_pipelines = parts[part]};
      progress.ranks.resize(2);
      if (parts.size() > 1) {
        progress.pipelines = {parts[part][0]};
      } else {
        progress.pipelines = {0, 1};
      }
    }
  }

  size_t groups_on(uint32_t pipeline) const {
    size_t count = 0;
    for (const PartProgress& part : parts_) {
      const auto& groups = part.group_pipelines;
      count += static_cast<size_t>(std::count(groups.begin(), groups.end(), pipeline));
    }
    return count;
  }

  void run(size_t steps) {
    for (size_t step = 0; step < steps; ++step) {
      train(10);
      balancer.step(
          parts_, [this](const std::string&) { return is_gathering; },
          [this](const std::string& job, const auto& by_part, const std::string& why) {
            CHECK(job == "train");
            CHECK(!why.empty());
            return move(by_part);
          },
          ++now_s_);
    }
  }

  PipelineBalancer balancer{kPipelines};
  std::vector<uint64_t> ms_per_group = {10, 10};  // by pipeline
  bool is_gathering = false;
  bool reports = true;
  size_t moves = 0;
  Status answer = ok_status();

 private:
  void train(uint64_t rounds) {
    std::vector<uint64_t> busy_ms(kPipelines);
    for (uint32_t pipeline = 0; pipeline < kPipelines; ++pipeline) {
      busy_ms[pipeline] = groups_on(pipeline) * ms_per_group[pipeline] + ++noise_ % 3;
    }
    const uint64_t slowest_ms = std::max(busy_ms[0], busy_ms[1]);
    for (PartProgress& part : parts_) {
      for (control::RankProgress& rank : part.ranks) {
        rank.rounds += rounds;
        rank.at_ns += rounds * (slowest_ms + 20) * kMilliNs;
        rank.busy_ns += rounds * slowest_ms * kMilliNs;
        rank.busy_ns_by_pipeline.resize(reports ? part.pipelines.size() : 0);
        for (size_t lane = 0; lane < rank.busy_ns_by_pipeline.size(); ++lane) {
          rank.busy_ns_by_pipeline[lane] += rounds * busy_ms[part.pipelines[lane]] * kMilliNs;
        }
      }
    }
  }

  Status move(const PipelineBalancer::Groups& by_part) {
    ++moves;
    if (!answer) return answer;
    for (const auto& [part, groups] : by_part) {
      CHECK(groups.size() == parts_[part].group_pipelines.size());
      parts_[part].group_pipelines = groups;
      if (parts_[part].pipelines.size() == 1) parts_[part].pipelines = groups;
    }
    return ok_status();
  }

  std::vector<PartProgress> parts_;
  uint64_t now_s_ = 0, noise_ = 0;
};

std::vector<uint32_t> halves(size_t groups) {
  std::vector<uint32_t> pipelines(groups, 0);
  std::fill(pipelines.begin() + static_cast<ptrdiff_t>(groups / 2), pipelines.end(), 1);
  return pipelines;
}

}  // namespace

TEST_CASE("a slow pipeline loses chunks of a job to the others") {
  BoxOfJobs box({halves(16)});
  box.ms_per_group = {10, 40};
  box.run(20);
  CHECK(box.moves >= 1);
  CHECK(box.groups_on(1) <= 4);
  CHECK(box.groups_on(1) >= 2);
  CHECK(box.balancer.groups_moved() >= 4);
  const auto views = box.balancer.view();
  REQUIRE(views.size() == 1);
  CHECK(views[0].job == "train");
  REQUIRE(views[0].boxes.size() == 2);
  CHECK(views[0].boxes[1].name == "pipeline 1");
  CHECK(views[0].boxes[1].parts == box.groups_on(1));
  const auto decisions = box.balancer.take_decisions();
  CHECK(std::any_of(decisions.begin(), decisions.end(), [](const auto& made) {
    return made.job == "train" && made.decision.kind == placement::DecisionKind::kExploit;
  }));
}

TEST_CASE("parts of a job on several boxes move between pipelines as a whole") {
  BoxOfJobs box({{0}, {1}, {0}, {1}, {0}, {1}, {0}, {1}});
  box.ms_per_group = {10, 30};
  box.run(20);
  CHECK(box.groups_on(1) == 2);
}

TEST_CASE("a pipeline that is as fast as the others keeps its chunks") {
  BoxOfJobs box({halves(16)});
  box.run(60);
  const auto decisions = box.balancer.take_decisions();
  CHECK(std::none_of(decisions.begin(), decisions.end(), [](const auto& made) {
    return made.decision.kind == placement::DecisionKind::kExploit;
  }));
}

TEST_CASE("boxes share the time that a job may lose by explorations") {
  const std::vector<std::vector<uint32_t>> parts = {{0}, {1}, {0}, {1}, {0}, {1}, {0}, {1}};
  BoxOfJobs alone(parts), one_of_four(parts, 24);
  alone.run(3'000);
  one_of_four.run(3'000);
  CHECK(alone.moves >= 8);
  CHECK(2 * one_of_four.moves <= alone.moves);
}

TEST_CASE("nothing moves while ranks gather, or if they do not say which pipeline they wait for") {
  BoxOfJobs box({halves(16)});
  box.ms_per_group = {10, 40};
  SECTION("a part gathers") {
    box.is_gathering = true;
  }
  SECTION("ranks of an older release") {
    box.reports = false;
  }
  box.run(20);
  CHECK(box.moves == 0);
}

TEST_CASE("a move that the box refuses is a decision with the reason") {
  BoxOfJobs box({halves(16)});
  box.ms_per_group = {10, 40};
  box.answer = Error{ErrorCode::kResourceExhausted, "pipeline 0 has no room"};
  box.run(20);
  CHECK(box.moves >= 1);
  CHECK(box.balancer.groups_moved() == 0);
  CHECK(box.groups_on(1) == 8);
  const auto decisions = box.balancer.take_decisions();
  CHECK(std::any_of(decisions.begin(), decisions.end(), [](const auto& made) {
    return made.decision.kind == placement::DecisionKind::kAbandon &&
           made.decision.reason.find("no room") != std::string::npos;
  }));
}

}  // namespace pbox::cluster
