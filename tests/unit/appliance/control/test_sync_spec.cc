#include <catch2/catch.hpp>
#include <cmath>
#include <functional>

#include "appliance/control/sync_spec.h"
#include "nic/wire/sync_message.h"

namespace pbox::control::sync_spec_test {
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
  std::vector<std::string> says;  // field and value, reason, remedy
};

auto set_staleness(uint32_t staleness) {
  return [=](proto::Join& join) { join.mutable_sync()->set_staleness(staleness); };
}
auto set_probability(float probability) {
  return [=](proto::Join& join) { join.mutable_sync()->set_probability(probability); };
}
void set_lazy(proto::Join& join) {
  join.mutable_sync()->set_release(1);
}
void set_cached(proto::Join& join) {
  join.mutable_sync()->set_reads(1);
}
auto set_quorum(uint32_t quorum) {
  return [=](proto::Join& join) { join.mutable_sync()->set_quorum(quorum); };
}
auto set_grace(uint32_t grace_ms) {
  return [=](proto::Join& join) { join.mutable_sync()->set_grace_ms(grace_ms); };
}

std::vector<Case> field_cases() {
  return {
      {SyncModel::kBsp,
       [](auto& join) { join.mutable_sync()->set_model(8); },
       {"sync.model 8", "unknown", "7 adaptive"}},
      {SyncModel::kSsp,
       [](auto& join) { join.mutable_sync()->set_release(2); },
       {"sync.release 2", "unknown", "1 lazy"}},
      {SyncModel::kSsp,
       [](auto& join) { join.mutable_sync()->set_reads(3); },
       {"sync.reads 3", "unknown", "2 answered"}},
      {SyncModel::kBsp, set_staleness(1), {"sync.staleness 1", "model bsp", "leave it 0"}},
      {SyncModel::kAsp, set_staleness(2), {"sync.staleness 2", "model asp", "use ssp"}},
      {SyncModel::kDrop, set_staleness(3), {"sync.staleness 3", "model drop", "use ssp"}},
      {SyncModel::kSsp, set_staleness(65), {"sync.staleness 65", "at most 64", "asp has no bound"}},
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
      {SyncModel::kSsp,
       [](auto& join) { join.mutable_sync()->set_staleness_min(1); },
       {"sync.staleness_min 1", "no meaning with sync.model ssp", "use adaptive"}},
      {SyncModel::kAdaptive,
       [](auto& join) { join.mutable_sync()->set_staleness_min(1); },
       {"sync.staleness_min 1", "above sync.staleness 0", "adaptive:1-8"}},
      {SyncModel::kAdaptive, set_lazy, {"sync.release lazy", "model adaptive"}},
      {SyncModel::kPssp,
       [](auto& join) { join.mutable_sync()->set_by_gradient(true); },
       {"sync.by_gradient", "model pssp", "use dpssp"}},
      {SyncModel::kSsp,
       [](auto& join) { join.mutable_sync()->set_counts_late(true); },
       {"sync.counts_late", "model ssp", "use drop"}},
      {SyncModel::kSsp, set_grace(5), {"sync.grace_ms 5", "model ssp", "use drop"}},
      {SyncModel::kDrop, set_grace(3'600'001), {"sync.grace_ms 3600001", "at most 3600000"}},
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
      {SyncModel::kEssp,
       [](auto& join) { join.set_rejoins(true); },
       {"sync.model essp", "cached reads", "rejoin", "use fresh reads"}},
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
    const bool has_staleness = (model >= 2 && model <= 5) || model == 7;
    if (has_staleness) sync.set_staleness(wire::kStalenessMax);
    if (model == 4 || model == 5 || model == 7) sync.set_probability(0.5f);
    if (has_staleness && model != 3 && model != 7) sync.set_release(1);
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
  CHECK(difference([](auto& spec) { spec.counts_late = true; }) ==
        "sync.counts_late: 1, but the job has 0");
  CHECK(difference([](auto& spec) { spec.grace_ms = 5; }) == "sync.grace_ms: 5, but the job has 0");
  JobSpec specs[2];
  specs[1].sync.model = SyncModel::kAsp;
  CHECK(first_difference(specs[0], specs[1]) == "sync.model: asp, but the job has bsp");
}

namespace {

wire::SyncSpec spec_of(const char* text) {
  return *wire::parse_sync_text(text);
}

// A JOIN of a job with this model. Its tensors have models of their own; "" for a tensor without
// one.
proto::Join join_of(const char* job, const std::vector<const char*>& tensors) {
  proto::Join join = join_of(SyncModel::kBsp);
  *join.mutable_sync() = wire::sync_message(spec_of(job));
  join.clear_tensors();
  for (const char* model : tensors) {
    auto& tensor = *join.add_tensors();
    tensor.set_name("tensor." + std::to_string(join.tensors_size() - 1));
    tensor.set_elements(100);
    tensor.set_lr_scale(1);
    if (*model != '\0') *tensor.mutable_sync() = wire::sync_message(spec_of(model));
  }
  return join;
}

JobSpec job_of(const char* job, const std::vector<const char*>& tensors) {
  return *parse_join(join_of(job, tensors), {});
}

std::string refusal(const proto::Join& join) {
  const auto spec = parse_join(join, {});
  return spec ? "none" : spec.error().message;
}

}  // namespace

TEST_CASE("a tensor has its own model, or the job's") {
  const JobSpec job = job_of("bsp", {"", "ssp:3", "asp", "bsp"});
  CHECK(job.sync == spec_of("bsp"));
  CHECK(job.relaxed_model == SyncModel::kSsp);
  CHECK(job.applies_on_arrival());
  CHECK(job.may_move());
  const auto chunks = cut_into_chunks(job);
  REQUIRE(chunks.size() == 4);
  CHECK(chunks[0].sync == spec_of("bsp"));
  CHECK(chunks[1].sync == spec_of("ssp:3"));
  CHECK(chunks[2].sync == spec_of("asp"));
  CHECK_FALSE(job_of("bsp", {"", "bsp"}).is_relaxed());
}

TEST_CASE("a part whose tensors are bsp is relaxed if a tensor of another part is") {
  proto::Join join = join_of("bsp", {""});
  join.set_relaxed_model(static_cast<uint32_t>(SyncModel::kPssp));
  const auto spec = parse_join(join, {});
  REQUIRE(spec.ok());
  CHECK(spec->is_relaxed());
  CHECK(spec->relaxed_model == SyncModel::kPssp);
  join.set_recovery(0);
  CHECK_THAT(refusal(join), Contains("sync.model pssp needs recovery none"));
  join.set_relaxed_model(wire::kSyncModelCount);
  CHECK_THAT(refusal(join), Contains("relaxed_model 8 is unknown"));
}

TEST_CASE("one tensor's model asks of the job what the job's own model would") {
  proto::Join join = join_of("bsp", {"", "ssp:3"});
  REQUIRE(refusal(join) == "none");
  const auto refuses = [&](auto spoil, const char* says) {
    proto::Join spoilt = join;
    spoil(spoilt);
    CHECK_THAT(refusal(spoilt), Contains(says));
  };
  refuses([](auto& one) { one.set_mode(0); }, "sync.model ssp needs mode optimize");
  refuses([](auto& one) { one.set_recovery(0); }, "sync.model ssp needs recovery none");
  refuses([](auto& one) { one.set_delivery(1); }, "delivery pull needs sync model bsp");
  refuses([](auto& one) { one.set_numerics(1); }, "numerics ordered needs sync model bsp");
  refuses([](auto& one) { one.set_guard(1); }, "guard reject needs sync model bsp: with ssp");
  refuses([](auto& one) { one.mutable_optimizer()->set_skip_nonfinite(true); },
          "skip_nonfinite needs sync model bsp: with ssp");
}

TEST_CASE("a tensor's model that is invalid, or cannot stand beside the job's, is refused") {
  CHECK_THAT(refusal(join_of("bsp", {"", "ssp:65"})),
             Contains("tensor 'tensor.1': sync.staleness 65 is out of range"));
  CHECK_THAT(refusal(join_of("ssp:1", {"drop:2"})),
             Contains("tensor 'tensor.0' has sync drop:2, and the job ssp:1") &&
                 Contains("skips rounds of all tensors"));
  CHECK_THAT(refusal(join_of("drop:2", {"asp"})), Contains("give all tensors the job's model"));
  CHECK_THAT(refusal(join_of("essp:2", {"", "essp:3"})), Contains("one copy of the whole model"));
  CHECK_THAT(refusal(join_of("bsp", {"ssp:2:cached"})), Contains("let all of them read fresh"));
  CHECK(refusal(join_of("essp:2", {"", "essp:2"})) == "none");
}

TEST_CASE("ranks whose tensors have different models are told the tensor") {
  const JobSpec job = job_of("asp", {"", "ssp:3"}), worker = job_of("asp", {"", "ssp:4"});
  CHECK(first_difference(job, worker) ==
        "tensor 1 ('tensor.1') sync.staleness: 4, but the job has 3");
  CHECK_FALSE(first_difference(job, job));
}

TEST_CASE("a change names tensors by a glob, or all of them and the job") {
  const JobSpec job = job_of("asp", {"", "ssp:3", ""});
  SyncInForce models = registered_models(job);
  CHECK(models.by_tensor == std::vector{spec_of("asp"), spec_of("ssp:3"), spec_of("asp")});
  REQUIRE(apply({"*.1", spec_of("pssp:2:0.5")}, job, models));
  CHECK(models.job == spec_of("asp"));
  CHECK(models.by_tensor == std::vector{spec_of("asp"), spec_of("pssp:2:0.5"), spec_of("asp")});
  REQUIRE(apply({"", spec_of("ssp:1:lazy")}, job, models));
  CHECK(models.job == spec_of("ssp:1:lazy"));
  CHECK(models.by_tensor == std::vector(3, spec_of("ssp:1:lazy")));
  CHECK(may_follow(registered_models(job), models));
}

TEST_CASE("a change that some tensor cannot have changes nothing, and says what to do") {
  const struct {
    const char *job, *own, *next, *says;
  } rows[] = {
      {"bsp", "ssp:3", "asp", "sums a round before it steps the weights, and asp has no memory"},
      {"ssp:3", "asp", "bsp", "or set ssp:0, which bounds staleness as bsp does"},
      {"ssp:3", "", "essp:3", "make their copies of the model for cached reads"},
      {"essp:3", "", "essp:4", "start all ranks again"},
      {"ssp:3", "", "drop:2", "only with drop do ranks skip rounds"},
      {"drop:2", "", "ssp:1", "only with drop do ranks skip rounds"},
      {"drop:2", "", "drop:5", "sync.quorum 5 is out of range"},
      {"ssp:3", "", "ssp:65", "sync.staleness 65 is out of range"},
  };
  for (const auto& row : rows) {
    INFO(row.job << " to " << row.next);
    const JobSpec job = job_of(row.job, {row.own, ""});
    SyncInForce models = registered_models(job);
    const Status applied = apply({"", spec_of(row.next)}, job, models);
    REQUIRE_FALSE(applied);
    CHECK_THAT(applied.error().message, Contains(row.says));
    CHECK(models == registered_models(job));
  }
  const JobSpec job = job_of("bsp", {"", "ssp:3"});
  SyncInForce models = registered_models(job);
  CHECK(apply({"*.1", spec_of("asp")}, job, models));
}

TEST_CASE("a grace is changed for all tensors of a job") {
  const JobSpec job = job_of("drop:2:500ms", {"", ""});
  SyncInForce models = registered_models(job);
  CHECK(apply({"*.1", spec_of("drop:1:500ms")}, job, models));
  const Status applied = apply({"*.1", spec_of("drop:1:auto")}, job, models);
  REQUIRE_FALSE(applied);
  CHECK_THAT(applied.error().message, Contains("drop:1:auto for tensors '*.1'") &&
                                          Contains("drop:2:500ms") && Contains("name no tensors"));
  CHECK(apply({"", spec_of("drop:1:auto")}, job, models));
  CHECK(models.job == spec_of("drop:1:auto"));
}

TEST_CASE("models cross to another box, which checks them") {
  const JobSpec job = job_of("asp", {"", "ssp:3", "ssp:3", "bsp"});
  const SyncInForce models = registered_models(job);
  proto::PartState message;
  write_models(models, message);
  CHECK(message.syncs_size() == 3);
  const auto read = read_models(message);
  REQUIRE(read.ok());
  CHECK(*read == models);
  message.set_sync_by_tensor(0, 3);
  CHECK(read_models(message).error().code == ErrorCode::kMismatch);
  message.set_sync_by_tensor(0, 0);
  message.mutable_syncs(0)->set_model(99);
  CHECK(read_models(message).error().code == ErrorCode::kMismatch);
  CHECK_FALSE(may_follow(models, {models.job, {models.job}}));
}

}  // namespace pbox::control::sync_spec_test
