// Compressed tensors in mode optimize, in an engine: full weights first, then deltas; weights for a
// rank that asks for them, for one that gives them back, and after a move.
#include "pipeline/state/chunk_state.h"
#include "tests/unit/pipeline/delta_job.h"

namespace pbox::test::engine_deltas_test {
namespace {

void run_round(Box& box, const JobOptions& job, Model& model, uint32_t round) {
  std::vector<Bytes> pushes;
  for (const uint32_t rank : {0u, 1u}) {
    pushes.push_back(push_of(job.dtype, rank, round));
    push(box, job, rank, round, job.dtype, pushes.back());
    push(box, job, rank, round, job.dtype, pushes.back());  // duplicates
  }
  const Bytes delta = model.next(job, round, pushes);
  const Results results = take_results(box, job);
  CHECK(results.dtype == job.dtype);
  for (const Bytes& bytes : results.bytes) CHECK(bytes == delta);
}

}  // namespace

TEST_CASE("a box in mode optimize takes full weights first, then blocks, and sends deltas") {
  for (const Dtype dtype : kFormats) {
    Box box;
    const JobOptions job = job_of(dtype);
    const pipeline::Chunk& chunk = box.admit(job).chunks()[0];
    Model model = begin(box, job);
    for (uint32_t round = 1; round < 5; ++round) {
      run_round(box, job, model, round);
      CHECK(Floats(chunk.weights, chunk.weights + kElements) == model.weights);
    }
    CHECK(model.weights != model.master);
    CHECK(box.count(Counter::kRoundsFinished) == 5);
    CHECK(box.count(Counter::kCompressedRounds) == 4);
    CHECK(box.count(Counter::kRejectDtype) == 0);
  }
}

TEST_CASE("the last delta is sent again as it was, or as weights to a rank that asks for them") {
  for (const Dtype dtype : kFormats) {
    Box box;
    const JobOptions job = job_of(dtype);
    box.admit(job);
    Model model = begin(box, job);
    run_round(box, job, model, 1);
    const Floats weights = model.weights;

    box.deliver(pull_as(box, job, 1, 1, dtype));
    const Results again = take_results(box, job);
    CHECK(again.dtype == dtype);
    box.deliver(pull_as(box, job, 0, 1, Dtype::kF32));
    const Results full = take_results(box, job);
    CHECK(full.dtype == Dtype::kF32);
    CHECK(floats_of(full.bytes[0]) == weights);
    CHECK(full.bytes[1].empty());

    // Fragments of the weights that a rank holds are left out.
    box.deliver(pull_as(box, job, 0, 1, Dtype::kF32, 0b11));
    const auto rest = box.take_all();
    CHECK(rest.size() == kElements * sizeof(float) / 512 + 1 - 2);
    // A rank asks for both forms at once.
    box.deliver(pull_as(box, job, 1, 1, dtype));
    box.deliver(pull_as(box, job, 1, 1, Dtype::kF32));
    size_t full_packets = 0;
    for (const Sent& sent : box.take_all()) full_packets += (sent.header.dtype_scale & 15) == 0;
    CHECK(full_packets == kElements * sizeof(float) / 512 + 1);
    run_round(box, job, model, 2);
  }
}

TEST_CASE("a late push of the initial weights is a duplicate, and asks for the weights") {
  Box box;
  const JobOptions job = job_of(Dtype::kQ8);
  box.admit(job);
  const Floats initial = begin(box, job).weights;
  push(box, job, 1, 0, Dtype::kF32, bytes_of(initial));
  const Results again = take_results(box, job);
  CHECK(again.dtype == Dtype::kF32);
  CHECK(floats_of(again.bytes[1]) == initial);
  CHECK(box.count(Counter::kRejectDtype) == 0);
  CHECK(box.count(Counter::kDuplicate) > 0);
  // A PULL of the delta that there never was gets the weights too.
  box.deliver(pull_as(box, job, 1, 0, Dtype::kQ8, ~uint64_t{0}));
  CHECK(floats_of(take_results(box, job).bytes[1]) == initial);
}

TEST_CASE("the open round takes only its own form") {
  Box box;
  const JobOptions job = job_of(Dtype::kQ4);
  box.admit(job);
  push(box, job, 0, 0, Dtype::kQ4, push_of(Dtype::kQ4, 0, 0));
  CHECK(box.count(Counter::kRejectDtype) > 0);
  Model model = begin(box, job);
  const uint64_t rejected = box.count(Counter::kRejectDtype) + box.count(Counter::kRejectFragment);
  push(box, job, 0, 1, Dtype::kF32, bytes_of(values_of(0, 1)));
  CHECK(box.count(Counter::kRejectDtype) + box.count(Counter::kRejectFragment) > rejected);
  run_round(box, job, model, 1);
}

TEST_CASE("a box that has lost everything takes weights from a rank and goes on with deltas") {
  for (const Dtype dtype : kFormats) {
    Box first;
    const JobOptions job = job_of(dtype);
    first.admit(job);
    Model model = begin(first, job);
    run_round(first, job, model, 1);
    const Floats weights = model.weights;

    Box box;
    pipeline::ShardSpec spec = spec_of(job);
    spec.chunks[0].first_round = 1;
    spec.chunks[0].copy_rank = 1;
    const auto shard = pipeline::JobShard::create(spec);
    REQUIRE(shard.ok());
    box.engine.execute({.kind = CommandKind::kInstall, .shard = shard->get()});
    push(box, job, 0, 1, dtype, push_of(dtype, 0, 1));  // it has not seen the result: a duplicate
    CHECK(box.count(Counter::kDuplicate) > 0);
    push(box, job, 1, 1, Dtype::kF32, bytes_of(weights), PacketType::kState);
    const Results results = take_results(box, job);
    CHECK(results.dtype == Dtype::kF32);
    for (const Bytes& bytes : results.bytes) CHECK(floats_of(bytes) == weights);
    // The optimizer begins anew, and what the deltas have not carried is lost with the box.
    Model next{.dtype = dtype, .weights = weights, .master = weights};
    for (uint32_t round = 2; round < 4; ++round) run_round(box, job, next, round);
    box.engine.execute({.kind = CommandKind::kRemove, .shard = shard->get()});
  }
}

TEST_CASE("a chunk that moves takes the weights along that its ranks have") {
  for (const Dtype dtype : kFormats) {
    Box first;
    const JobOptions job = job_of(dtype);
    pipeline::JobShard& shard = first.admit(job);
    Model model = begin(first, job);
    for (uint32_t round = 1; round < 3; ++round) run_round(first, job, model, round);
    const auto state = pipeline::state_of(shard, shard.chunks()[0]);
    REQUIRE(state);

    Box box;
    pipeline::JobShard& moved = box.admit(job);
    pipeline::restore(moved, *state);
    box.deliver(pull_as(box, job, 0, 2, dtype));
    const Results results = take_results(box, job);
    CHECK(results.dtype == Dtype::kF32);
    CHECK(floats_of(results.bytes[0]) == model.weights);
    model.master = model.weights;
    for (uint32_t round = 3; round < 5; ++round) run_round(box, job, model, round);
  }
}

TEST_CASE("a skipped round's delta carries what the last one has left") {
  Box box;
  JobOptions job = job_of(Dtype::kQ4);
  job.gated = true;
  pipeline::JobShard& shard = box.admit(job);
  Model model = begin(box, job);
  const auto run = [&](uint32_t round, bool is_skip) {
    for (const uint32_t rank : {0u, 1u}) {
      push(box, job, rank, round, job.dtype, push_of(job.dtype, rank, round));
    }
    box.engine.execute({.kind = CommandKind::kGiveVerdict,
                        .shard = &shard,
                        .verdict = {.round = round, .factor = 1.0f, .is_skip = is_skip}});
    while (box.engine.finish_waiting(box.now_ns)) {
    }
    return take_results(box, job);
  };
  const Bytes delta = model.next(job, 1, {push_of(job.dtype, 0, 1), push_of(job.dtype, 1, 1)});
  CHECK(run(1, false).bytes[0] == delta);
  const Results skipped = run(2, true);
  Floats difference(kElements);
  for (uint32_t i = 0; i < kElements; ++i) difference[i] = -model.weights[i];
  CHECK(skipped.bytes[0] ==
        encoded(job.dtype, model.master, difference,
                {.seed = quantize::hash_of("job 0"), .rank = quantize::kBoxRank, .round = 2}));
}

}  // namespace pbox::test::engine_deltas_test
