// Pipelines as running threads, on free ports of loopback.
#include <catch2/catch.hpp>

#include "appliance/pipelines/pipeline_set.h"

namespace pbox::pipelines {
namespace {

topology::Topology plan_of_two() {
  topology::Topology topology;
  for (uint32_t index = 0; index < 2; ++index) {
    topology::PipelinePlan pipeline;
    pipeline.index = index;
    pipeline.address = "127.0.0.1";
    topology.pipelines.push_back(pipeline);
  }
  return topology;
}

}  // namespace

TEST_CASE("memory.hugepages = off reaches the memory of jobs") {
  config::Config config;
  for (const auto value : {config::OnOffAuto::kAuto, config::OnOffAuto::kOff}) {
    config.memory.hugepages = value;
    const auto set = PipelineSet::start(plan_of_two(), config);
    REQUIRE(set);
    REQUIRE((*set)->count() == 2);
    const auto expected = value == config::OnOffAuto::kOff ? Hugepages::kNever : Hugepages::kIfFree;
    CHECK((*set)->info(0).hugepages == expected);
    CHECK((*set)->info(1).hugepages == expected);
  }
}

}  // namespace pbox::pipelines
