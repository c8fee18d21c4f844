#include <catch2/catch.hpp>
#include <cmath>
#include <functional>

#include "appliance/control/job_spec.h"
#include "nic/wire/sync.h"

namespace pbox::control::job_spec_test {
namespace {

using Catch::Contains;

proto::Join good_join() {
  proto::Join join;
  join.set_job("resnet");
  join.set_rank(1);
  join.set_world_size(4);
  join.set_mode(1);
  join.set_reduction(1);
  join.set_chunk_bytes(4096);
  auto& optimizer = *join.mutable_optimizer();
  optimizer.set_kind(4);
  optimizer.set_learning_rate(0.5f);
  optimizer.set_beta1(0.9f);
  optimizer.set_beta2(0.999f);
  optimizer.set_epsilon(1e-8f);
  optimizer.set_weight_decay(0.25f);
  for (const char* name : {"first", "second"}) {
    auto& tensor = *join.add_tensors();
    tensor.set_name(name);
    tensor.set_elements(3000);
    tensor.set_lr_scale(1);
  }
  return join;
}

using Spoil = std::function<void(proto::Join&)>;

// Each case makes one field invalid. The message must name the field, the value and what is
// allowed.
struct Case {
  const char* what;
  Spoil spoil;
  std::vector<std::string> says;
  ErrorCode code = ErrorCode::kInvalidArgument;
};

std::vector<Case> identity_cases() {
  return {
      {"empty name", [](auto& join) { join.set_job(""); }, {"job name has 0 bytes", "1 to 128"}},
      {"long name",
       [](auto& join) { join.set_job(std::string(129, 'x')); },
       {"job name has 129 bytes", "1 to 128"}},
      {"long name of three bytes a character",
       [](auto& join) {
         join.clear_job();
         for (int count = 0; count < 43; ++count) *join.mutable_job() += "\u20ac";
       },
       {"job name has 129 bytes", "1 to 128"}},
      {"space in the name", [](auto& join) { join.set_job("a b"); }, {"job name", "ASCII"}},
      {"learning rate of a rank that resumes",
       [](auto& join) { join.set_learning_rate(NAN); },
       {"learning_rate nan", "must be finite"}},
      {"negative learning rate of a rank that resumes",
       [](auto& join) { join.set_learning_rate(-1); },
       {"learning_rate -1", "must be finite and >= 0"}},
      {"quote in the name", [](auto& join) { join.set_job("a\"b"); }, {"job name", "quotes"}},
      {"no workers", [](auto& join) { join.set_world_size(0); }, {"world_size 0", "1 to 8"}},
      {"too many workers",
       [](auto& join) { join.set_world_size(9); },
       {"world_size 9", "1 to 8", "workers_max"}},
      {"rank at the end", [](auto& join) { join.set_rank(4); }, {"rank 4", "below world_size 4"}},
      {"mode", [](auto& join) { join.set_mode(2); }, {"mode 2", "unknown"}},
      {"reduction", [](auto& join) { join.set_reduction(7); }, {"reduction 7", "unknown"}},
      {"priority policy",
       [](auto& join) { join.set_priority_policy(3); },
       {"priority_policy 3", "0 explicit", "2 fifo"}},
      {"delivery", [](auto& join) { join.set_delivery(2); }, {"delivery 2", "1 pull"}},
      {"delivery that the sync model does not have",
       [](auto& join) {
         join.set_delivery(1);
         join.mutable_sync()->set_model(static_cast<uint32_t>(wire::SyncModel::kSsp));
       },
       {"delivery pull", "bsp", "set delivery broadcast"}},
  };
}

std::vector<Case> optimizer_cases() {
  return {
      {"no optimizer",
       [](auto& join) { join.clear_optimizer(); },
       {"optimizer.kind 0", "1 SGD", "6 Adagrad"}},
      {"unknown optimizer",
       [](auto& join) { join.mutable_optimizer()->set_kind(7); },
       {"optimizer.kind 7", "6 Adagrad"}},
      {"negative learning rate",
       [](auto& join) { join.mutable_optimizer()->set_learning_rate(-0.5f); },
       {"optimizer.learning_rate", "-0.5", ">= 0"}},
      {"infinite momentum",
       [](auto& join) { join.mutable_optimizer()->set_momentum(INFINITY); },
       {"optimizer.momentum", "inf", "finite"}},
      {"beta1 of one",
       [](auto& join) { join.mutable_optimizer()->set_beta1(1); },
       {"optimizer.beta1 = 1", "< 1"}},
      {"beta2 not a number",
       [](auto& join) { join.mutable_optimizer()->set_beta2(NAN); },
       {"optimizer.beta2", "nan", "finite"}},
      {"negative epsilon too small for six digits",
       [](auto& join) { join.mutable_optimizer()->set_epsilon(-1e-9f); },
       {"optimizer.epsilon", "-1e-09", ">= 0"}},
      {"negative weight decay",
       [](auto& join) { join.mutable_optimizer()->set_weight_decay(-1); },
       {"optimizer.weight_decay", "-1", ">= 0"}},
  };
}

std::vector<Case> tensor_cases() {
  const auto second = [](proto::Join& join) { return join.mutable_tensors(1); };
  return {
      {"no tensors",
       [](auto& join) { join.clear_tensors(); },
       {"tensor list is empty", "register"}},
      {"nameless",
       [=](auto& join) { second(join)->set_name(""); },
       {"tensor 1", "name has 0 bytes", "1 to 256"}},
      {"long name",
       [=](auto& join) { second(join)->set_name(std::string(257, 'n')); },
       {"tensor 1", "257 bytes", "1 to 256"}},
      {"twice",
       [=](auto& join) { second(join)->set_name("first"); },
       {"tensor name 'first'", "twice"}},
      {"empty tensor",
       [=](auto& join) { second(join)->set_elements(0); },
       {"tensor 1 ('second')", "no elements", "leave it out"}},
      {"huge tensor",
       [=](auto& join) { second(join)->set_elements((1ull << 40) + 1); },
       {"tensor 1 ('second')", "1099511627777 elements", "2^40"}},
      {"dtype",
       [=](auto& join) { second(join)->set_dtype(3); },
       {"tensor 1 ('second')", "dtype 3", "2 bf16"}},
      {"lr_scale",
       [=](auto& join) { second(join)->set_lr_scale(-1); },
       {"tensor 1 ('second')", "lr_scale", ">= 0"}},
      {"weight decay of a tensor",
       [=](auto& join) {
         second(join)->set_has_weight_decay(true);
         second(join)->set_weight_decay(NAN);
       },
       {"tensor 1 ('second')", "weight_decay", "finite"}},
      {"odd chunk",
       [](auto& join) { join.set_chunk_bytes(4100); },
       {"chunk_bytes 4100", "multiple of 64"}},
      {"small chunk", [](auto& join) { join.set_chunk_bytes(512); }, {"chunk_bytes 512", "[1024"}},
      {"large chunk",
       [](auto& join) { join.set_chunk_bytes(limits::kChunkBytesMax + 64); },
       {"chunk_bytes 2097216", "2097152]"}},
      {"too many chunks",
       [=](auto& join) { second(join)->set_elements(1u << 20); },
       {"1027 chunks", "4096 bytes", "takes 1000", "Raise chunk_bytes"},
       ErrorCode::kResourceExhausted},
  };
}

void require_refused(const std::vector<Case>& cases) {
  const JobLimits limits{.workers_max = 8, .chunks_max = 1000, .chunk_bytes_default = 2048};
  for (const Case& one : cases) {
    INFO(one.what);
    proto::Join join = good_join();
    one.spoil(join);
    const auto spec = parse_join(join, limits);
    REQUIRE_FALSE(spec.ok());
    CHECK(spec.error().code == one.code);
    for (const auto& text : one.says) CHECK_THAT(spec.error().message, Contains(text));
    proto::Failure sent;  // the message must be valid UTF-8, whatever the worker sent
    sent.set_message(spec.error().message);
    CHECK(proto::Failure().ParseFromString(sent.SerializeAsString()));
  }
}

}  // namespace

TEST_CASE("a JOIN becomes a job, field by field") {
  proto::Join join = good_join();
  auto& tensor = *join.add_tensors();
  tensor.set_name("third");
  tensor.set_elements(5);
  tensor.set_dtype(2);
  tensor.set_priority(-3);
  tensor.set_lr_scale(0.5f);
  tensor.set_has_weight_decay(true);
  const auto spec = parse_join(join, {});
  REQUIRE(spec.ok());
  CHECK(spec->name == "resnet");
  CHECK(spec->world_size == 4);
  CHECK(spec->mode == pipeline::Mode::kOptimize);
  CHECK(spec->reduction == pipeline::Reduction::kMean);
  CHECK(spec->chunk_bytes == 4096);
  CHECK(spec->optimizer.kind == optimizer::OptimizerKind::kAdam);
  CHECK(spec->optimizer.learning_rate == 0.5f);
  CHECK(spec->optimizer.beta1 == 0.9f);
  CHECK(spec->optimizer.beta2 == 0.999f);
  CHECK(spec->optimizer.epsilon == 1e-8f);
  REQUIRE(spec->tensors.size() == 3);
  CHECK(spec->element_count() == 6005);
  CHECK(spec->tensors[0].weight_decay == 0.25f);  // the optimizer's
  CHECK(spec->tensors[2].weight_decay == 0);      // its own
  CHECK(spec->tensors[2].dtype == wire::Dtype::kBf16);
  CHECK(spec->tensors[2].priority == -3);
  CHECK(spec->tensors[2].lr_scale == 0.5f);
  CHECK(spec->tensors[2].bytes() == 10);
}

TEST_CASE("without chunk_bytes the box's default applies, and mode aggregate needs no optimizer") {
  proto::Join join = good_join();
  join.set_chunk_bytes(0);
  join.set_mode(0);
  join.clear_optimizer();
  const auto spec = parse_join(join, {.chunk_bytes_default = 2048});
  REQUIRE(spec.ok());
  CHECK(spec->chunk_bytes == 2048);
}

TEST_CASE("a JOIN with an invalid identity is refused with field, value and remedy") {
  require_refused(identity_cases());
}

TEST_CASE("a JOIN with an invalid optimizer is refused with field, value and remedy") {
  require_refused(optimizer_cases());
}

TEST_CASE("a JOIN with invalid tensors is refused with field, value and remedy") {
  require_refused(tensor_cases());
}

TEST_CASE(
    "a table needs mode optimize, fast numerics, and rows that its optimizer can leave alone") {
  const auto refusal = [](const Spoil& spoil) {
    proto::Join join = good_join();
    join.mutable_tensors(1)->set_row_elements(60);
    REQUIRE(parse_join(join, {}).ok());
    spoil(join);
    const auto spec = parse_join(join, {});
    REQUIRE_FALSE(spec.ok());
    CHECK_THAT(spec.error().message, Contains("tensor 'second': row_elements"));
    return spec.error().message;
  };
  CHECK_THAT(refusal([](auto& join) { join.set_mode(0); }), Contains("60 needs mode optimize"));
  CHECK_THAT(refusal([](auto& join) { join.set_numerics(1); }), Contains("60 needs numerics fast"));
  CHECK_THAT(refusal([](auto& join) { join.mutable_tensors(1)->set_row_elements(31); }),
             Contains("rows of 124 bytes") && Contains("SGD or Adagrad"));
  CHECK_THAT(refusal([](auto& join) { join.mutable_tensors(1)->set_row_elements(1u << 25); }),
             Contains("out of range"));
  proto::Join join = good_join();
  join.mutable_optimizer()->set_kind(6);
  join.mutable_optimizer()->set_weight_decay(0);
  join.mutable_tensors(1)->set_row_elements(7);
  CHECK(parse_join(join, {}).ok());
}

TEST_CASE("chunks of a table say where in a row they begin, also in a part of it") {
  proto::Join join = good_join();
  join.mutable_tensors(1)->set_row_elements(60);
  join.mutable_tensors(1)->set_first_element(100);
  const auto spec = parse_join(join, {});
  REQUIRE(spec.ok());
  const auto chunks = cut_into_chunks(*spec);
  REQUIRE(chunks.size() == 6);
  for (const auto id : {0u, 1u, 2u}) CHECK(chunks[id].row_bytes == 0);
  for (const auto id : {3u, 4u, 5u}) {
    CHECK(chunks[id].row_bytes == 240);
    CHECK(chunks[id].row_skipped_bytes == (400 + (id - 3) * 4096) % 240);
  }
  JobSpec other = *spec;
  other.tensors[1].row_elements = 50;
  CHECK(first_difference(*spec, other) ==
        "tensor 1 ('second') row_elements: 50, but the job has 60");
}

TEST_CASE("a compressed tensor needs f32 and model bsp or drop, and is never forwarded") {
  proto::Join join = good_join();
  join.set_mode(0);
  join.mutable_tensors(1)->set_compression(2);
  const auto spec = parse_join(join, {});
  REQUIRE(spec.ok());
  CHECK(check_relayed(*spec).error().message.find("tensor 'second' has compression q4, but sums") !=
        std::string::npos);
  const auto refusal = [&](const Spoil& spoil) {
    proto::Join other = join;
    spoil(other);
    const auto refused = parse_join(other, {});
    REQUIRE_FALSE(refused.ok());
    CHECK_THAT(refused.error().message, Contains("'second'"));
    return refused.error().message;
  };
  proto::Join optimizing = join;
  optimizing.set_mode(1);
  CHECK(parse_join(optimizing, {}).ok());
  proto::Join dropping = optimizing;
  dropping.set_recovery(1);
  dropping.mutable_sync()->set_model(static_cast<uint32_t>(wire::SyncModel::kDrop));
  dropping.mutable_sync()->set_quorum(1);
  CHECK(parse_join(dropping, {}).ok());
  CHECK_THAT(refusal([](auto& bad) {
               bad.set_mode(1);
               bad.mutable_tensors(1)->set_row_elements(60);
             }),
             Contains("compression q4 cannot be used for a table"));
  CHECK_THAT(refusal([](auto& bad) {
               bad.set_mode(1);
               bad.set_recovery(1);
               bad.mutable_sync()->set_model(static_cast<uint32_t>(wire::SyncModel::kAsp));
             }),
             Contains("compression q4 needs model bsp or drop for all tensors, and some tensor "
                      "has asp"));
  CHECK_THAT(refusal([](auto& bad) { bad.mutable_tensors(1)->set_dtype(2); }),
             Contains("compression q4 needs f32, and the tensor is bf16"));
  CHECK_THAT(refusal([](auto& bad) {
               bad.set_is_backup(true);
               bad.set_world_size(1);
               bad.set_rank(0);
               bad.set_recovery(1);
               bad.set_delivery(1);
             }),
             Contains("compression q4 cannot be used with backup = 1"));
  CHECK_THAT(refusal([](auto& bad) { bad.mutable_tensors(1)->set_compression(3); }),
             Contains("compression 3 is unknown; 0 none, 1 q8, 2 q4"));
}

TEST_CASE("chunks of a compressed tensor travel in blocks, and ranks must agree about them") {
  proto::Join join = good_join();
  join.set_mode(0);
  join.mutable_tensors(1)->set_compression(1);
  const auto spec = parse_join(join, {});
  REQUIRE(spec.ok());
  const auto chunks = cut_into_chunks(*spec);
  REQUIRE(chunks.size() == 6);
  for (const auto id : {0u, 1u, 2u}) CHECK(chunks[id].dtype == wire::Dtype::kF32);
  for (const auto id : {3u, 4u, 5u}) {
    CHECK(chunks[id].dtype == wire::Dtype::kQ8);
    CHECK(chunks[id].elements == chunks[id - 3].elements);
  }
  JobSpec other = *spec;
  other.tensors[1].compression = wire::Compression::kNone;
  CHECK(first_difference(*spec, other) ==
        "tensor 1 ('second') compression: none, but the job has q8");
}

TEST_CASE("a JOIN with more tensors than a job may have is refused") {
  proto::Join join = good_join();
  join.set_mode(0);
  for (uint32_t index = 0; index < limits::kTensorsPerJobMax; ++index) {
    auto& tensor = *join.add_tensors();
    tensor.set_name(std::to_string(index));
    tensor.set_elements(1);
  }
  const auto spec = parse_join(join, {});
  REQUIRE_FALSE(spec.ok());
  CHECK_THAT(spec.error().message, Contains("65538") && Contains("at most 65536"));
}

TEST_CASE("a guard is checked, and in mode optimize `reject` asks for verdicts") {
  proto::Join join = good_join();
  CHECK(parse_join(join, {})->guard == wire::GuardSpec{});
  join.set_guard(2);
  join.set_guard_max_abs(1.5f);
  CHECK(parse_join(join, {})->guard == wire::GuardSpec{wire::Guard::kZero, 1.5f});
  CHECK_FALSE(parse_join(join, {})->needs_verdicts());
  join.set_guard(1);
  CHECK(parse_join(join, {})->needs_verdicts());
  CHECK(parse_join(join, {})->unsound_value() ==
        "an infinity, a NaN or a value beyond guard_max_abs 1.5");
  join.set_mode(0);
  CHECK_FALSE(parse_join(join, {})->needs_verdicts());
  join.set_guard(3);
  CHECK_THAT(parse_join(join, {}).error().message,
             Contains("guard 3 is unknown; 0 flag, 1 reject"));
  join.set_guard(0);
  for (const float bound : {-1.0f, INFINITY, NAN}) {
    join.set_guard_max_abs(bound);
    CHECK_THAT(parse_join(join, {}).error().message,
               Contains("guard_max_abs = ") && Contains("must be finite and >= 0"));
  }
}

TEST_CASE("an elastic job has a bound, goes on without lost ranks, and has rounds to come at") {
  proto::Join join = good_join();
  join.set_world_size(4);
  CHECK_FALSE(parse_join(join, {})->is_elastic());
  join.set_min_world_size(4);
  CHECK_FALSE(parse_join(join, {})->is_elastic());
  join.set_min_world_size(5);
  CHECK_THAT(parse_join(join, {}).error().message,
             Contains("min_world_size 5 is above world_size 4"));
  join.set_min_world_size(2);
  join.set_rejoins(true);
  CHECK_THAT(parse_join(join, {}).error().message, Contains("needs on_worker_lost partial"));
  join.set_on_worker_lost(1);
  CHECK(parse_join(join, {})->is_elastic());
  CHECK(parse_join(join, {})->min_world_size == 2);
  join.set_recovery(1);
  join.mutable_sync()->set_model(static_cast<uint32_t>(wire::SyncModel::kAsp));
  CHECK_THAT(parse_join(join, {}).error().message,
             Contains("min_world_size 2 needs sync model bsp"));
}

TEST_CASE("weights need a mean of whole tensors, in which every rank's push counts once") {
  proto::Join join = good_join();
  CHECK_FALSE(parse_join(join, {})->weighted);
  join.set_weighted(true);
  join.set_reduction(0);
  CHECK_THAT(parse_join(join, {}).error().message,
             Contains("weighted needs reduction mean") && Contains("set mean"));
  join.set_reduction(1);
  CHECK(parse_join(join, {})->weighted);
  const auto refused = [&](const char* why, const std::function<void(proto::Join&)>& change) {
    proto::Join other = join;
    change(other);
    CHECK_THAT(parse_join(other, {}).error().message, Contains(why));
  };
  refused("guard_max_abs = 3 cannot be used with weighted",
          [](proto::Join& other) { other.set_guard_max_abs(3); });
  refused("rank 1 states 7 workers", [](proto::Join& other) { other.set_workers(7); });
  refused("row_elements 2", [](proto::Join& other) {
    other.mutable_tensors(0)->set_row_elements(2);
    other.mutable_tensors(0)->set_elements(8);
  });
  join.set_recovery(1);
  refused("weighted needs sync model bsp or drop: with ssp", [](proto::Join& other) {
    other.mutable_sync()->set_model(static_cast<uint32_t>(wire::SyncModel::kSsp));
  });
  join.mutable_sync()->set_model(static_cast<uint32_t>(wire::SyncModel::kDrop));
  join.mutable_sync()->set_quorum(1);
  CHECK(parse_join(join, {})->weighted);

  JobSpec relayed;
  relayed.reduction = pipeline::Reduction::kMean;
  CHECK(check_relayed(relayed));
  relayed.weighted = true;
  CHECK_THAT(check_relayed(relayed).error().message, Contains("weighted cannot be used here"));
}

TEST_CASE("guard reject needs sync model bsp, the other guards do not") {
  proto::Join join = good_join();
  join.set_recovery(1);
  join.mutable_sync()->set_model(static_cast<uint32_t>(wire::SyncModel::kAsp));
  for (const uint32_t guard : {0u, 2u}) {
    join.set_guard(guard);
    CHECK(parse_join(join, {}));
  }
  join.set_guard(1);
  CHECK_THAT(parse_join(join, {}).error().message,
             Contains("guard reject needs sync model bsp") && Contains("set guard zero"));
}

}  // namespace pbox::control::job_spec_test
