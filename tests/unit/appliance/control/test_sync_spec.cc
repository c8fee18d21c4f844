#include <catch2/catch.hpp>
#include <cmath>
#include <functional>

#include "appliance/control/sync_spec.h"

namespace pbox::control {
namespace {

using Catch::Contains;
using wire::SyncModel;

// A JOIN that every model except BSP accepts, once the model's own fields are set.
proto::Join join_of(SyncModel model) {
  proto::Join join;
  join.set_job("job");
  join.set_world_size(4);
  join.set_mode(1);
  join.set_recovery(1);
  join.mutable_optimizer()->set_kind(1);
  join.mutable_optimizer()->set_learning_rate(0.5f);
  auto& tensor = *join.add_tensors();
  tensor.set_name("weights");
  tensor.set_elements(100);
  tensor.set_lr_scale(1);
  auto& sync = *join.mutable_sync();
  sync.set_model(static_cast<uint32_t>(model));
  sync.set_probability(1);
  if (model == SyncModel::kDrop) sync.set_quorum(3);
  return join;
}

struct Case {
  SyncModel model;
  std::function<void(proto::Join&)> spoil;
  std::vector<std::string> says;  // field and value, why, remedy
};

const auto set_staleness = [](uint32_t staleness) {
  return [=](proto::Join& join) { join.mutable_sync()->set_staleness(staleness); };
};
const auto set_probability = [](float probability) {
  return [=](proto::Join& join) { join.mutable_sync()->set_probability(probability); };
};
const auto set_lazy = [](proto::Join& join) { join.mutable_sync()->set_release(1); };
const auto set_cached = [](proto::Join& join) { join.mutable_sync()->set_reads(1); };
const auto set_quorum = [](uint32_t quorum) {
  return [=](proto::Join& join) { join.mutable_sync()->set_quorum(quorum); };
};

std::vector<Case> field_cases() {
  return {
      {SyncModel::kBsp,
       [](auto& join) { join.mutable_sync()->set_model(7); },
       {"sync.model 7", "unknown", "6 drop"}},
      {SyncModel::kSsp,
       [](auto& join) { join.mutable_sync()->set_release(2); },
       {"sync.release 2", "unknown", "1 lazy"}},
      {SyncModel::kSsp,
       [](auto& join) { join.mutable_sync()->set_reads(3); },
       {"sync.reads 3", "unknown", "2 answered"}},
      {SyncModel::kBsp, set_staleness(1), {"sync.staleness 1", "model bsp", "leave it 0"}},
      {SyncModel::kAsp, set_staleness(2), {"sync.staleness 2", "model asp", "use ssp"}},
      {SyncModel::kDrop, set_staleness(3), {"sync.staleness 3", "model drop", "use ssp"}},
      {SyncModel::kSsp, set_staleness(65), {"sync.staleness 65", "at most 64", "or asp"}},
      {SyncModel::kPssp, set_probability(0), {"sync.probability 0", "above 0", "use asp"}},
      {SyncModel::kPssp, set_probability(1.5f), {"sync.probability 1.5", "at most 1"}},
      {SyncModel::kDpssp, set_probability(-1), {"sync.probability -1", "above 0"}},
      {SyncModel::kDpssp, set_probability(NAN), {"sync.probability nan", "above 0"}},
      {SyncModel::kSsp, set_probability(0.5f), {"sync.probability 0.5", "model ssp", "use pssp"}},
      {SyncModel::kBsp, set_probability(0.5f), {"sync.probability 0.5", "model bsp", "leave it 1"}},
      {SyncModel::kBsp, set_lazy, {"sync.release lazy", "model bsp", "leave it soft"}},
      {SyncModel::kAsp, set_lazy, {"sync.release lazy", "model asp", "use ssp"}},
      {SyncModel::kEssp, set_lazy, {"sync.release lazy", "model essp", "leave it soft"}},
      {SyncModel::kDrop, set_lazy, {"sync.release lazy", "model drop"}},
      {SyncModel::kSsp,
       [](auto& join) { set_lazy(join), set_cached(join); },
       {"sync.release lazy", "sync.reads cached", "read fresh"}},
      {SyncModel::kBsp, set_cached, {"sync.reads cached", "not with sync.model bsp", "read fresh"}},
      {SyncModel::kAsp, set_cached, {"sync.reads cached", "not with sync.model asp"}},
      {SyncModel::kPssp, set_cached, {"sync.reads cached", "not with sync.model pssp"}},
      {SyncModel::kDrop, set_cached, {"sync.reads cached", "not with sync.model drop"}},
      {SyncModel::kSsp, set_quorum(2), {"sync.quorum 2", "model ssp", "use drop"}},
      {SyncModel::kBsp, set_quorum(4), {"sync.quorum 4", "model bsp", "leave it 0"}},
      {SyncModel::kDrop, set_quorum(0), {"sync.quorum 0", "1 to world_size 4"}},
      {SyncModel::kDrop, set_quorum(5), {"sync.quorum 5", "1 to world_size 4"}},
  };
}

std::vector<Case> job_cases() {
  const auto aggregate = [](proto::Join& join) { join.set_mode(0); };
  const auto set_kind = [](proto::Join& join) { join.mutable_optimizer()->set_kind(2); };
  return {
      {SyncModel::kAsp, aggregate, {"sync.model asp", "mode optimize", "must hold the weights"}},
      {SyncModel::kDrop, aggregate, {"sync.model drop", "mode optimize", "what it missed"}},
      {SyncModel::kSsp,
       [](auto& join) { join.set_recovery(0); },
       {"sync.model ssp", "recovery none", "set recovery none"}},
      {SyncModel::kDrop,
       [](auto& join) { join.set_rejoins(true); },
       {"rejoin", "not with drop", "start all ranks again"}},
      {SyncModel::kPssp,
       [](auto& join) { join.set_delivery(1); },
       {"delivery pull", "sync model bsp", "set delivery broadcast"}},
      {SyncModel::kEssp, set_kind, {"sync.model essp", "optimizer.kind 1 (SGD)", "sync.reads 2"}},
      {SyncModel::kSsp,
       [=](auto& join) { set_kind(join), set_cached(join); },
       {"sync.model ssp with cached reads", "optimizer.kind 1 (SGD)"}},
      {SyncModel::kEssp,
       [](auto& join) { join.mutable_optimizer()->set_weight_decay(0.25f); },
       {"weight_decay 0", "0.25", "set it to 0"}},
      {SyncModel::kEssp,
       [](auto& join) {
         join.mutable_tensors(0)->set_has_weight_decay(true);
         join.mutable_tensors(0)->set_weight_decay(0.5f);
       },
       {"weight_decay 0", "tensor 'weights' has 0.5", "set it to 0"}},
  };
}

void require_refused(const std::vector<Case>& cases) {
  for (const Case& one : cases) {
    INFO(one.says[0] << " with " << to_string(one.model));
    proto::Join join = join_of(one.model);
    if (one.model == SyncModel::kBsp) join.set_mode(0);
    REQUIRE(parse_join(join, {}).ok());
    one.spoil(join);
    const auto spec = parse_join(join, {});
    REQUIRE_FALSE(spec.ok());
    CHECK(spec.error().code == ErrorCode::kInvalidArgument);
    for (const auto& text : one.says) CHECK_THAT(spec.error().message, Contains(text));
  }
}

}  // namespace

TEST_CASE("a job that does not set a consistency model is BSP") {
  proto::Join join = join_of(SyncModel::kBsp);
  join.clear_sync();
  const auto spec = parse_join(join, {});
  REQUIRE(spec.ok());
  CHECK(spec->sync == wire::SyncSpec{});
}

TEST_CASE("answered reads go with every optimizer, and with the models that could cache") {
  for (const auto model : {SyncModel::kSsp, SyncModel::kEssp}) {
    proto::Join join = join_of(model);
    join.mutable_optimizer()->set_kind(5);
    join.mutable_optimizer()->set_weight_decay(0.25f);
    join.mutable_sync()->set_reads(2);
    const auto spec = parse_join(join, {});
    REQUIRE(spec.ok());
    CHECK(spec->sync.reads == wire::Reads::kAnswered);
    CHECK(to_string(spec->sync.reads) == std::string("answered"));
    join.mutable_sync()->set_release(1);
    CHECK_THAT(parse_join(join, {}).error().message, Contains("release lazy"));
  }
  proto::Join join = join_of(SyncModel::kPssp);
  join.mutable_sync()->set_reads(2);
  CHECK_THAT(parse_join(join, {}).error().message, Contains("sync.reads answered is possible"));
}

TEST_CASE("each model is accepted with all its fields") {
  for (uint32_t model = 0; model < wire::kSyncModelCount; ++model) {
    proto::Join join = join_of(static_cast<SyncModel>(model));
    auto& sync = *join.mutable_sync();
    const bool has_staleness = model >= 2 && model <= 5;
    if (has_staleness) sync.set_staleness(wire::kStalenessMax);
    if (model == 4 || model == 5) sync.set_probability(0.5f);
    if (has_staleness && model != 3) sync.set_release(1);
    const auto spec = parse_join(join, {});
    INFO(to_string(static_cast<SyncModel>(model)));
    REQUIRE(spec.ok());
    CHECK(static_cast<uint32_t>(spec->sync.model) == model);
    CHECK(spec->sync.staleness == sync.staleness());
    CHECK(spec->sync.probability == sync.probability());
    CHECK(static_cast<uint32_t>(spec->sync.release) == sync.release());
    CHECK(spec->sync.quorum == sync.quorum());
  }
}

TEST_CASE("ESSP always reads cached data, and an unset probability is 1") {
  for (const bool says_so : {false, true}) {
    proto::Join join = join_of(SyncModel::kEssp);
    join.mutable_sync()->set_reads(says_so ? 1 : 0);
    join.mutable_sync()->clear_probability();
    const auto spec = parse_join(join, {});
    REQUIRE(spec.ok());
    CHECK(spec->sync.reads == wire::Reads::kCached);
    CHECK(spec->sync.probability == 1);
  }
}

TEST_CASE(
    "a field that the model does not have, or that is out of range, is refused with the remedy") {
  require_refused(field_cases());
}

TEST_CASE("a model that conflicts with the rest of the job is refused with the reason") {
  require_refused(job_cases());
}

TEST_CASE("ranks that ask for different consistency are told the first difference") {
  const wire::SyncSpec job{.model = SyncModel::kPssp, .staleness = 3, .probability = 0.5f};
  CHECK_FALSE(sync_difference(job, job));
  const auto difference = [&](auto change) {
    wire::SyncSpec worker = job;
    change(worker);
    return sync_difference(job, worker).value_or("none");
  };
  CHECK(difference([](auto& spec) { spec.model = SyncModel::kSsp; }) ==
        "sync.model: ssp, but the job has pssp");
  CHECK(difference([](auto& spec) { spec.staleness = 4; }) ==
        "sync.staleness: 4, but the job has 3");
  CHECK(difference([](auto& spec) { spec.probability = 0.25f; }) ==
        "sync.probability: 0.25, but the job has 0.5");
  CHECK(difference([](auto& spec) { spec.release = wire::Release::kLazy; }) ==
        "sync.release: lazy, but the job has soft");
  CHECK(difference([](auto& spec) { spec.reads = wire::Reads::kCached; }) ==
        "sync.reads: cached, but the job has fresh");
  CHECK(difference([](auto& spec) { spec.quorum = 1; }) == "sync.quorum: 1, but the job has 0");
  JobSpec specs[2];
  specs[1].sync.model = SyncModel::kAsp;
  CHECK(first_difference(specs[0], specs[1]) == "sync.model: asp, but the job has bsp");
}

}  // namespace pbox::control
