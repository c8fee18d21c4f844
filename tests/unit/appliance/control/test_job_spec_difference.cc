#include <catch2/catch.hpp>
#include <functional>

#include "appliance/control/job_spec.h"

namespace pbox::control::job_spec_difference_test {
namespace {

using Catch::Contains;

JobSpec job() {
  JobSpec spec;
  spec.name = "job";
  spec.world_size = 4;
  spec.mode = pipeline::Mode::kOptimize;
  spec.optimizer.kind = optimizer::OptimizerKind::kSgd;
  spec.optimizer.learning_rate = 0.1f;
  spec.optimizer.momentum = 0.9f;
  spec.optimizer.beta1 = 0.9f;
  spec.optimizer.beta2 = 0.999f;
  spec.optimizer.epsilon = 1e-8f;
  spec.chunk_bytes = 4096;
  spec.tensors = {{.name = "a", .elements = 10}, {.name = "b", .elements = 20}};
  return spec;
}

struct Case {
  std::function<void(JobSpec&)> change;
  std::vector<std::string> says;  // field, the worker's value, the job's value
};

// The cases, in the order in which fields are compared.
std::vector<Case> cases() {
  using optimizer::OptimizerKind;
  return {
      {[](auto& spec) { spec.world_size = 5; }, {"world_size: 5", "has 4"}},
      {[](auto& spec) { spec.min_world_size = 1; }, {"min_world_size: 1", "has 0"}},
      {[](auto& spec) { spec.mode = pipeline::Mode::kAggregate; },
       {"mode: aggregate", "has optimize"}},
      {[](auto& spec) { spec.collective = true; }, {"collective: 1", "has 0"}},
      {[](auto& spec) { spec.reduction = pipeline::Reduction::kMean; },
       {"reduction: mean", "has sum"}},
      {[](auto& spec) { spec.weighted = true; }, {"weighted: 1", "has 0"}},
      {[](auto& spec) { spec.on_worker_lost = LostPolicy::kAbort; },
       {"on_worker_lost: abort", "has wait"}},
      {[](auto& spec) { spec.recovery = Recovery::kNone; }, {"recovery: none", "has copy"}},
      {[](auto& spec) { spec.priority_policy = wire::PriorityPolicy::kFifo; },
       {"priority_policy: fifo", "has explicit"}},
      {[](auto& spec) { spec.delivery = wire::Delivery::kPull; },
       {"delivery: pull", "has broadcast"}},
      {[](auto& spec) { spec.numerics = wire::Numerics::kOrdered; },
       {"numerics: ordered", "has fast"}},
      {[](auto& spec) { spec.chunk_bytes = 8192; }, {"chunk_bytes: 8192", "has 4096"}},
      {[](auto& spec) { spec.optimizer.kind = OptimizerKind::kAdam; },
       {"optimizer.kind: adam", "sgd"}},
      {[](auto& spec) { spec.optimizer.learning_rate = 0.2f; },
       {"optimizer.learning_rate: 0.2", "has 0.1"}},
      {[](auto& spec) { spec.optimizer.momentum = 0; }, {"optimizer.momentum: 0", "has 0.9"}},
      {[](auto& spec) { spec.optimizer.beta1 = 0.5f; }, {"optimizer.beta1: 0.5", "has 0.9"}},
      {[](auto& spec) { spec.optimizer.beta2 = 0.5f; }, {"optimizer.beta2: 0.5", "has 0.999"}},
      {[](auto& spec) { spec.optimizer.epsilon = 1e-7f; },
       {"optimizer.epsilon: 1e-07", "has 1e-08"}},
      {[](auto& spec) { spec.guard.policy = wire::Guard::kZero; }, {"guard: zero", "has flag"}},
      {[](auto& spec) { spec.guard.max_abs = 0.5f; }, {"guard_max_abs: 0.5", "has 0"}},
      {[](auto& spec) { spec.tensors[0].name.front() = 'z'; }, {"tensor 0: named 'z'", "has 'a'"}},
      {[](auto& spec) { spec.tensors[0].elements = 11; },
       {"tensor 0 ('a') elements: 11", "has 10"}},
      {[](auto& spec) { spec.tensors[0].dtype = wire::Dtype::kBf16; },
       {"tensor 0 ('a') dtype: bf16", "has f32"}},
      {[](auto& spec) { spec.tensors[0].priority = -1; }, {"tensor 0 ('a') priority: -1", "has 0"}},
      {[](auto& spec) { spec.tensors[0].lr_scale = 2; }, {"tensor 0 ('a') lr_scale: 2", "has 1"}},
      {[](auto& spec) { spec.tensors[0].weight_decay = 0.5f; },
       {"tensor 0 ('a') weight_decay: 0.5", "has 0"}},
      {[](auto& spec) { spec.tensors[1].elements = 21; },
       {"tensor 1 ('b') elements: 21", "has 20"}},
      {[](auto& spec) { spec.tensors.push_back({.name = "c", .elements = 1}); },
       {"tensor 2 ('c')", "this worker's list only"}},
  };
}

}  // namespace

TEST_CASE("equal descriptions do not differ, whatever the job's name") {
  JobSpec other = job();
  CHECK_FALSE(first_difference(job(), other));
  other.name = "another";
  CHECK_FALSE(first_difference(job(), other));
}

TEST_CASE("each field's difference is named with both values") {
  for (const Case& one : cases()) {
    JobSpec worker = job();
    one.change(worker);
    const auto difference = first_difference(job(), worker);
    INFO(one.says[0]);
    REQUIRE(difference);
    for (const auto& text : one.says) CHECK_THAT(*difference, Contains(text));
  }
}

TEST_CASE("if there are two differences, the first one is named") {
  const auto all = cases();
  for (size_t index = 0; index + 1 < all.size(); ++index) {
    JobSpec worker = job();
    all[index + 1].change(worker);
    all[index].change(worker);
    const auto difference = first_difference(job(), worker);
    REQUIRE(difference);
    const std::string& earlier = all[index].says[0];
    // A renamed tensor is another tensor, so its other fields are not compared.
    CHECK_THAT(*difference, Contains(earlier.substr(0, earlier.find(':'))));
  }
}

TEST_CASE("a worker that lacks the job's last tensor is told its name") {
  JobSpec worker = job();
  worker.tensors.pop_back();
  const auto difference = first_difference(job(), worker);
  REQUIRE(difference);
  CHECK_THAT(*difference, Contains("tensor 1 ('b')") && Contains("missing from this worker's"));
}

TEST_CASE(
    "a job is divided into chunks in tensor order, and the last chunk of a tensor is shorter") {
  JobSpec spec = job();
  spec.chunk_bytes = 1024;
  spec.tensors = {{.name = "a", .elements = 600, .priority = 2},
                  {.name = "b", .elements = 1, .dtype = wire::Dtype::kF16},
                  {.name = "c",
                   .elements = 1024,
                   .dtype = wire::Dtype::kBf16,
                   .lr_scale = 3,
                   .weight_decay = 4}};
  const auto chunks = cut_into_chunks(spec);
  REQUIRE(chunks.size() == 3 + 1 + 2);
  const std::vector<uint32_t> elements = {256, 256, 88, 1, 512, 512};
  for (uint32_t index = 0; index < chunks.size(); ++index) {
    CHECK(chunks[index].chunk == index);
    CHECK(chunks[index].elements == elements[index]);
  }
  CHECK(chunks[2].priority == 2);
  CHECK(chunks[3].dtype == wire::Dtype::kF16);
  CHECK(chunks[5].dtype == wire::Dtype::kBf16);
  CHECK(chunks[5].lr_scale == 3);
  CHECK(chunks[5].weight_decay == 4);
}

TEST_CASE("chunk boundaries cover every element exactly once at the edges of a chunk") {
  for (const uint64_t elements : {255ull, 256ull, 257ull, 511ull, 512ull, 513ull}) {
    JobSpec spec = job();
    spec.chunk_bytes = 1024;
    spec.tensors = {{.name = "a", .elements = elements}};
    uint64_t covered = 0;
    for (const auto& chunk : cut_into_chunks(spec)) {
      CHECK(chunk.elements > 0);
      CHECK(chunk.elements <= 256);
      covered += chunk.elements;
    }
    CHECK(covered == elements);
  }
}

}  // namespace pbox::control::job_spec_difference_test
