// A part's state in pieces: it is transferred as a whole, and answers that do not fit are rejected.
#include <catch2/catch.hpp>
#include <functional>

#include "appliance/control/part_state.h"

namespace pbox::control::part_state_test {
namespace {

constexpr uint32_t kEpoch = 7;

// Chunks 0, 2 and 3 of four; one of them is larger than an answer.
PartState sample() {
  PartState state;
  state.epoch = kEpoch;
  state.learning_rate = 0.25f;
  const size_t counts[] = {10, 0, kStateAnswerBytesMax / 2, 1};
  for (const uint32_t id : {0u, 2u, 3u}) {
    auto& chunk = state.chunks.emplace_back();
    chunk.chunk = id;
    chunk.rounds_finished = 100 + id;
    chunk.steps = 40 + id;
    chunk.contributors = {2, static_cast<uint16_t>(id)};
    chunk.fragment_bytes = 1408;
    if (id == 2) chunk.clocks = {5, 3, UINT64_MAX};
    for (size_t index = 0; index < counts[id]; ++index) {
      chunk.values.push_back(static_cast<float>(index) + static_cast<float>(id) / 8);
    }
  }
  return state;
}

IncomingState incoming() {
  return IncomingState(kEpoch, {10, 5, kStateAnswerBytesMax / 2, 1});
}

proto::PartState next_answer(const PartState& state, const IncomingState& here) {
  proto::AskState question;
  here.describe(question);
  CHECK(question.epoch() == kEpoch);
  return answer_of(state, question);
}

}  // namespace

TEST_CASE("a state is transferred as a whole, however many answers it takes") {
  const PartState state = sample();
  IncomingState here = incoming();
  uint32_t answers = 0;
  while (!here.is_whole()) {
    const auto answer = next_answer(state, here);
    CHECK(answer.ByteSizeLong() < kStateAnswerBytesMax + 1024);
    REQUIRE(here.take(answer));
    ++answers;
  }
  CHECK(answers == 3);
  CHECK(here.state().learning_rate == 0.25f);
  REQUIRE(here.state().chunks.size() == 3);
  CHECK(here.state().bytes() == state.bytes());
  for (size_t index = 0; index < 3; ++index) {
    const auto& came = here.state().chunks[index];
    const auto& was = state.chunks[index];
    CHECK(came.chunk == was.chunk);
    CHECK(came.rounds_finished == was.rounds_finished);
    CHECK(came.steps == was.steps);
    CHECK(came.values == was.values);
    CHECK(came.contributors == was.contributors);
    CHECK(came.fragment_bytes == was.fragment_bytes);
    CHECK(came.clocks == was.clocks);
  }
}

TEST_CASE("the state of a part without weights is empty and complete") {
  PartState state;
  state.epoch = kEpoch;
  IncomingState here = incoming();
  REQUIRE(here.take(next_answer(state, here)));
  CHECK(here.is_whole());
  CHECK(here.state().chunks.empty());
}

TEST_CASE("an answer that does not match the question is rejected") {
  const PartState state = sample();
  using Change = std::function<void(proto::PartState&)>;
  const std::vector<std::pair<std::string, Change>> changes = {
      {"epoch 8", [](auto& answer) { answer.set_epoch(8); }},
      {"checksum", [](auto& answer) { (*answer.mutable_pieces(0)->mutable_values())[5] ^= 1; }},
      {"checksum", [](auto& answer) { answer.mutable_pieces(0)->set_rounds(99); }},
      {"checksum", [](auto& answer) { answer.mutable_pieces(0)->set_steps(39); }},
      {"checksum", [](auto& answer) { answer.mutable_pieces(0)->add_clocks(1); }},
      {"counts are invalid", [](auto& answer) { answer.mutable_pieces(0)->set_rounds(0); }},
      {"counts are invalid",
       [](auto& answer) { answer.mutable_pieces(0)->mutable_clocks()->Resize(10'000, 1); }},
      {"counts are invalid", [](auto& answer) { answer.mutable_pieces(0)->set_fragment_bytes(0); }},
      {"other bytes", [](auto& answer) { answer.mutable_pieces(0)->set_offset(4); }},
      {"other bytes", [](auto& answer) { answer.mutable_pieces(0)->clear_values(); }},
      {"other bytes",
       [](auto& answer) { answer.mutable_pieces(0)->mutable_values()->append(4, 'x'); }},
      {"was not asked for", [](auto& answer) { answer.mutable_pieces(0)->set_chunk(4); }},
      {"the answer is empty", [](auto& answer) { answer.clear_pieces(); }},
      {"last bytes are missing", [](auto& answer) { answer.set_last(true); }},
  };
  for (const auto& [what, change] : changes) {
    IncomingState here = incoming();
    proto::PartState answer = next_answer(state, here);
    change(answer);
    const Status taken = here.take(answer);
    REQUIRE_FALSE(taken);
    CHECK_THAT(taken.error().message, Catch::Contains(what));
    CHECK_FALSE(here.is_whole());
  }
  IncomingState here = incoming();
  const proto::PartState first = next_answer(state, here);
  REQUIRE(here.take(first));
  CHECK_FALSE(here.take(first));  // the same answer again
}

TEST_CASE("models that were changed come with the first answer, and invalid ones are refused") {
  PartState state = sample();
  state.models = SyncInForce{.job = {.model = wire::SyncModel::kAsp},
                             .by_tensor = {{.model = wire::SyncModel::kSsp, .staleness = 3}}};
  IncomingState here = incoming();
  const auto first = next_answer(state, here);
  CHECK(first.syncs_size() == 2);
  auto spoilt = first;
  spoilt.set_sync_by_tensor(0, 7);
  CHECK(here.take(spoilt).error().code == ErrorCode::kMismatch);
  REQUIRE(here.take(first));
  while (!here.is_whole()) {
    const auto answer = next_answer(state, here);
    CHECK(answer.syncs_size() == 0);
    REQUIRE(here.take(answer));
  }
  REQUIRE(here.state().models.has_value());
  CHECK(*here.state().models == *state.models);
}

}  // namespace pbox::control::part_state_test
