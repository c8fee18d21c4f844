// Compressed tensors with model drop: deltas for ranks whose pushes were in time, and weights in
// full for all others.
#include <map>

#include "pipeline/state/chunk_state.h"
#include "tests/unit/pipeline/delta_job.h"

namespace pbox::test::engine_deltas_test {
namespace {

JobOptions dropping_job(Dtype dtype, uint32_t quorum = 1, uint32_t workers = 2) {
  JobOptions job = job_of(dtype);
  job.workers = workers;
  job.sync = {.model = wire::SyncModel::kDrop, .quorum = quorum};
  return job;
}

// The last result that a rank was sent: fragments of one round, in one form.
struct Reply {
  Dtype dtype = Dtype::kF32;
  uint32_t round = 0;
  uint64_t mask = 0;
  std::map<uint32_t, uint32_t> applied = {};  // by fragment
  Bytes bytes = {};
};
// Returns the replies that leave, by rank. Within a reply no fragment comes twice.
std::map<uint32_t, Reply> take_replies(const std::vector<Sent>& packets, const JobOptions& job) {
  std::map<uint32_t, Reply> replies;
  for (const Sent& sent : packets) {
    if (sent.header.type() != PacketType::kResult) continue;
    const auto dtype = static_cast<Dtype>(sent.header.dtype_scale & 15);
    Reply& reply = replies[sent.header.spi & 63];
    if (reply.mask == 0 || reply.dtype != dtype || reply.round != sent.header.round) {
      reply = {.dtype = dtype, .round = sent.header.round};
      reply.bytes.resize(wire::payload_bytes(dtype, kElements));
    }
    const size_t begin =
        sent.header.fragment * size_t{wire::fragment_bytes_of(dtype, job.fragment_bytes)};
    REQUIRE(begin + sent.payload.size() <= reply.bytes.size());
    CHECK((reply.mask >> sent.header.fragment & 1) == 0);
    reply.mask |= uint64_t{1} << sent.header.fragment;
    reply.applied[sent.header.fragment] = sent.header.applied();
    std::copy(sent.payload.begin(), sent.payload.end(), reply.bytes.begin() + ptrdiff_t(begin));
  }
  return replies;
}

uint64_t whole(Dtype dtype, const JobOptions& job) {
  return wire::full_mask(wire::fragment_count(wire::payload_bytes(dtype, kElements),
                                              wire::fragment_bytes_of(dtype, job.fragment_bytes)));
}

void check_full(const Reply& reply, const JobOptions& job, uint32_t round, const Floats& weights) {
  CHECK(reply.dtype == Dtype::kF32);
  CHECK(reply.round == round);
  CHECK(reply.mask == whole(Dtype::kF32, job));
  CHECK(floats_of(reply.bytes) == weights);
}

void check_delta(const Reply& reply, const JobOptions& job, uint32_t round, const Bytes& delta) {
  CHECK(reply.dtype == job.dtype);
  CHECK(reply.round == round);
  CHECK(reply.mask == whole(job.dtype, job));
  CHECK(reply.bytes == delta);
}

std::map<uint32_t, Reply> push_round(Box& box, const JobOptions& job, uint32_t rank,
                                     uint32_t round) {
  push(box, job, rank, round, job.dtype, push_of(job.dtype, rank, round));
  return take_replies(box.take_all(), job);
}

std::map<uint32_t, Reply> pull_reply(Box& box, const JobOptions& job, uint32_t rank, uint32_t round,
                                     Dtype dtype, uint64_t held_mask = 0) {
  box.now_ns += 1'000'000'000;  // the budget of resends is full again
  box.deliver(pull_as(box, job, rank, round, dtype, held_mask));
  return take_replies(box.take_all(), job);
}

}  // namespace

TEST_CASE("with model drop a rank in time is sent the delta, and a late one the weights") {
  for (const Dtype dtype : kFormats) {
    Box box;
    const JobOptions job = dropping_job(dtype);
    box.admit(job);
    Model model = begin(box, job);
    for (const uint32_t round : {1u, 2u, 3u, 4u}) {  // the ranks are late in turns
      const uint32_t first = round & 1;
      const Bytes delta = model.next(job, round, {push_of(dtype, first, round)});
      const auto in_time = push_round(box, job, first, round);
      REQUIRE(in_time.size() == 1);
      check_delta(in_time.at(first), job, round, delta);
      const auto late = push_round(box, job, 1 - first, round);
      REQUIRE(late.size() == 1);
      check_full(late.at(1 - first), job, round, model.weights);
    }
    CHECK(box.count(Counter::kDropped) > 0);
    // A rank that was in time and then misses a round lacks the weights before the newest ones.
    CHECK(push_round(box, job, 0, 5).size() == 1);
    CHECK(push_round(box, job, 1, 6).size() == 1);
    CHECK(pull_reply(box, job, 0, 5, dtype, ~uint64_t{0}).at(0).dtype == Dtype::kF32);
  }
}

TEST_CASE("late pushes in blocks count in the open round's delta") {
  Box box;
  JobOptions job = dropping_job(Dtype::kQ8);
  job.sync.counts_late = true;
  box.admit(job);
  Model model = begin(box, job);
  model.next(job, 1, {push_of(job.dtype, 0, 1)});
  push_round(box, job, 0, 1);
  check_full(push_round(box, job, 1, 1).at(1), job, 1, model.weights);
  const Bytes delta = model.next(job, 2, {push_of(job.dtype, 1, 1), push_of(job.dtype, 0, 2)});
  check_delta(push_round(box, job, 0, 2).at(0), job, 2, delta);
}

TEST_CASE("with model drop initial weights that come again are duplicates") {
  Box box;
  const JobOptions job = dropping_job(Dtype::kQ4);
  box.admit(job);
  Model model = begin(box, job);
  push(box, job, 1, 0, Dtype::kF32, bytes_of(model.weights));
  CHECK(box.count(Counter::kDuplicate) == kElements * sizeof(float) / 512 + 1);
  CHECK(box.count(Counter::kRejectDtype) == 0);
  CHECK(box.take_all().empty());
  const auto again = pull_reply(box, job, 1, 0, Dtype::kF32);
  check_full(again.at(1), job, 0, model.weights);
  // Every fragment includes the rank's push of initial weights, whichever fragments of the open
  // round it has pushed.
  for (const auto& [fragment, applied] : again.at(1).applied) CHECK(applied == 1);
}

TEST_CASE("with model drop a PULL for weights is answered with them until the rank is in time") {
  Box box;
  const JobOptions job = dropping_job(Dtype::kQ8);
  box.admit(job);
  Model model = begin(box, job);
  model.next(job, 1, {push_of(job.dtype, 0, 1)});
  push_round(box, job, 0, 1);
  const auto rest = pull_reply(box, job, 0, 1, job.dtype, 0b1);
  CHECK(rest.at(0).dtype == job.dtype);
  CHECK(rest.at(0).mask == (whole(job.dtype, job) & ~uint64_t{1}));
  check_full(pull_reply(box, job, 0, 1, Dtype::kF32).at(0), job, 1, model.weights);
  const auto others = pull_reply(box, job, 0, 1, Dtype::kF32, 0b11);
  CHECK(others.at(0).mask == (whole(Dtype::kF32, job) & ~uint64_t{0b11}));
  // The mask names fragments of the delta, so it leaves out none of the weights.
  check_full(pull_reply(box, job, 0, 1, job.dtype, 0b11).at(0), job, 1, model.weights);
  const Bytes delta = model.next(job, 2, {push_of(job.dtype, 0, 2)});
  check_delta(push_round(box, job, 0, 2).at(0), job, 2, delta);
}

TEST_CASE("with model drop weights in full count a push only if all of it was in time") {
  Box box;
  const JobOptions job = dropping_job(Dtype::kQ8);
  box.admit(job);
  begin(box, job);
  const Bytes pushed = push_of(job.dtype, 1, 1);
  push(box, job, 1, 1, job.dtype, {pushed.begin(), pushed.begin() + 462});
  const auto replies = push_round(box, job, 0, 1);
  CHECK(replies.at(1).dtype == job.dtype);  // its first fragment was in time
  CHECK(replies.at(1).applied.at(0) == 2);
  CHECK(replies.at(1).applied.at(1) == 1);
  const auto of_part = pull_reply(box, job, 1, 1, Dtype::kF32);
  for (const auto& [fragment, applied] : of_part.at(1).applied) CHECK(applied == 1);
  const auto of_whole = pull_reply(box, job, 0, 1, Dtype::kF32);
  for (const auto& [fragment, applied] : of_whole.at(0).applied) CHECK(applied == 2);
}

TEST_CASE("a delta that has not left becomes weights when a round closes without its rank") {
  Box box;
  const JobOptions job = dropping_job(Dtype::kQ8);
  box.admit(job);
  begin(box, job);
  push(box, job, 0, 1, job.dtype, push_of(job.dtype, 0, 1));
  CHECK(box.engine.to_send().size() == 5);
  box.engine.sent(1);
  push(box, job, 1, 2, job.dtype, push_of(job.dtype, 1, 2));
  auto replies = take_replies(box.take_all(), job);
  CHECK(replies.at(0).dtype == Dtype::kF32);
  CHECK(replies.at(0).round == 2);
  // The packets that the port had not taken, then all others.
  CHECK(replies.at(0).mask == whole(Dtype::kF32, job));
  CHECK(replies.at(1).dtype == job.dtype);
  const auto rest = pull_reply(box, job, 0, 2, Dtype::kF32, 0b11110);
  CHECK(rest.at(0).mask == (whole(Dtype::kF32, job) & ~uint64_t{0b11110}));
}

TEST_CASE("a reply begins again when its form changes") {
  Box box;
  const JobOptions job = dropping_job(Dtype::kQ8, 13, 14);
  box.admit(job);
  const Floats initial = values_of(0, 0);
  for (uint32_t rank = 0; rank < job.workers; ++rank) {
    push(box, job, rank, 0, Dtype::kF32, bytes_of(initial));
  }
  box.take_all();
  for (uint32_t rank = 0; rank < 13; ++rank) {
    push(box, job, rank, 1, job.dtype, push_of(job.dtype, rank, 1));
  }
  const auto burst = box.take_burst();
  REQUIRE(burst.size() == limits::kBurstPackets);
  REQUIRE((burst.back().header.spi & 63) == 12);  // one packet of its delta is left
  REQUIRE(burst.back().header.fragment == 3);
  for (uint32_t rank = 0; rank < job.workers; ++rank) {
    if (rank != 12) push(box, job, rank, 2, job.dtype, push_of(job.dtype, rank, 2));
  }
  const auto replies = take_replies(box.take_all(), job);
  CHECK(replies.at(11).dtype == job.dtype);
  CHECK(replies.at(11).round == 2);
  CHECK(replies.at(12).dtype == Dtype::kF32);
  CHECK(replies.at(12).round == 2);
  CHECK(replies.at(12).mask == whole(Dtype::kF32, job));
}

TEST_CASE("with model drop a rank with a new session is sent weights before its next delta") {
  Box box;
  const JobOptions job = dropping_job(Dtype::kQ8);
  pipeline::JobShard& shard = box.admit(job);
  Model model = begin(box, job);
  model.next(job, 1, {push_of(job.dtype, 0, 1)});
  push_round(box, job, 0, 1);
  box.engine.execute({.kind = CommandKind::kAdmit,
                      .shard = &shard,
                      .credit_bytes = job.credit_bytes,
                      .rank = 0,
                      .spi = shard.sessions()[0].spi,
                      .generation = shard.generation});
  check_full(pull_reply(box, job, 0, 1, job.dtype).at(0), job, 1, model.weights);
  const Bytes delta = model.next(job, 2, {push_of(job.dtype, 0, 2)});
  check_delta(push_round(box, job, 0, 2).at(0), job, 2, delta);
}

TEST_CASE("with model drop a chunk that moves sends its last weights in full, and then deltas") {
  for (const uint32_t last_round : {0u, 2u}) {
    Box first;
    const JobOptions job = dropping_job(Dtype::kQ8);
    pipeline::JobShard& shard = first.admit(job);
    Model model = begin(first, job);
    for (uint32_t round = 1; round <= last_round; ++round) {
      model.next(job, round, {push_of(job.dtype, 0, round)});
      push_round(first, job, 0, round);
    }
    const auto state = pipeline::state_of(shard, shard.chunks()[0]);
    REQUIRE(state);
    REQUIRE(pipeline::has_valid_clocks(*state, job.sync.model, job.workers, job.dtype, kElements));

    Box box;
    pipeline::restore(box.admit(job), *state);
    for (const uint32_t rank : {0u, 1u}) {
      const auto replies = pull_reply(box, job, rank, last_round, job.dtype);
      check_full(replies.at(rank), job, last_round, model.weights);
    }
    model.master = model.weights;
    const uint32_t round = last_round + 1;
    const Bytes delta = model.next(job, round, {push_of(job.dtype, 0, round)});
    check_delta(push_round(box, job, 0, round).at(0), job, round, delta);
  }
}

}  // namespace pbox::test::engine_deltas_test
