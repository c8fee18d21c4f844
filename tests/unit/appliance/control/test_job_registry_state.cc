// Parts in mode optimize that go from one box to another, with their state or without it.
#include <algorithm>
#include <catch2/catch.hpp>

#include "nic/wire/control_frame.h"
#include "tests/unit/appliance/control/registry_desk.h"

namespace pbox::control::job_registry_state_test {
namespace {

using Catch::Contains;

constexpr uint64_t kRounds = 5;  // rounds finished when the part moves
constexpr float kRate = 0.375f;

// Sets all chunks to a state as after kRounds rounds.
void train(Desk& desk) {
  for (pipeline::Chunk* chunk : chunks_of(desk)) {
    chunk->rounds_finished = kRounds;
    chunk->fanned_out_rounds = kRounds;
    const auto base = static_cast<float>(100 * chunk->id);
    std::fill_n(chunk->weights, chunk->elements, base + 1);
    std::fill_n(chunk->optimizer_state, chunk->elements, base + 2);
    std::fill_n(chunk->optimizer_state + chunk->elements, chunk->elements, base + 3);
  }
}

bool is_trained(const pipeline::Chunk& chunk) {
  const auto base = static_cast<float>(100 * chunk.id);
  return chunk.rounds_finished == kRounds && chunk.copy_rank == pipeline::kNoRank &&
         chunk.stateless_round == 0 && chunk.first_round == kRounds - 1 &&
         std::count(chunk.weights, chunk.weights + chunk.elements, base + 1) == chunk.elements &&
         std::count(chunk.optimizer_state, chunk.optimizer_state + chunk.elements, base + 2) ==
             chunk.elements &&
         chunk.optimizer_state[2 * chunk.elements - 1] == base + 3;
}

constexpr uint64_t kPushed = 1;  // fragments of rank 1's next round that have arrived, as bits

// Rank 0 has pushed one round more than rank 1, and waits.
void set_clocks(Desk& desk) {
  for (pipeline::Chunk* chunk : chunks_of(desk)) {
    chunk->sync->progress.begin({chunk->sync->next, 2}, kRounds);
    chunk->sync->progress.complete_push(0);
    chunk->sync->progress.park(0);
    chunk->claimed[1] = chunk->fragment_count > 1 ? kPushed : 0;
    std::fill_n(chunk->sync->updates, chunk->fragment_count, 2 * kRounds);
  }
}

// Two boxes; the job begins on the first.
struct Boxes {
  Desk first{{.box_name = "first"}};
  Desk second{{.box_name = "second"}};
  wire::SyncModel model;
  uint32_t path_mtu = 9'000;
  std::vector<ConnectionId> ids;
  std::vector<proto::Session> sessions;

  explicit Boxes(wire::SyncModel of_job = wire::SyncModel::kBsp) : model(of_job) {
    first.parts.knows_boxes = second.parts.knows_boxes = true;
    for (const uint32_t rank : {0u, 1u}) ids.push_back(first.join(join(rank)));
    for (const ConnectionId id : ids) sessions.push_back(first.take(id).at(0).session());
    train(first);
    if (wire::applies_on_arrival(model)) set_clocks(first);
    first.say(ids[0], learning_rate_message(kRate, 1));
  }

  proto::WorkerMessage join(uint32_t rank) const {
    auto message = join_optimizing(rank);
    message.mutable_join()->mutable_sync()->set_model(static_cast<uint32_t>(model));
    if (model != wire::SyncModel::kBsp) message.mutable_join()->set_recovery(1);
    if (model == wire::SyncModel::kDrop) message.mutable_join()->mutable_sync()->set_quorum(1);
    message.mutable_join()->set_path_mtu(path_mtu);
    return message;
  }

  // Joins the rank, which resumes and has consumed `rounds` rounds of each chunk.
  ConnectionId resume(Desk& desk, uint32_t rank, uint32_t rounds) const {
    return resume(desk, rank, rounds, join(rank));
  }
  ConnectionId resume(Desk& desk, uint32_t rank, uint32_t rounds,
                      proto::WorkerMessage message) const {
    message.mutable_join()->set_resumes(true);
    message.mutable_join()->set_epoch(sessions[rank].epoch());
    message.mutable_join()->set_generation(sessions[rank].generation());
    message.mutable_join()->set_box(sessions[rank].box());
    const ConnectionId id = desk.join(message);
    if (desk.is_closed(id)) return id;
    proto::WorkerMessage stated;
    for (int chunk = 0; chunk < 4; ++chunk) stated.mutable_rounds()->add_rounds(rounds);
    stated.mutable_rounds()->set_last(true);
    desk.say(id, stated);
    return id;
  }

  void move_away() {
    proto::PartPlace place;
    place.set_box("second");
    place.set_address("10.0.0.8:9541");
    first.parts.moved[{"train", 0}] = place;
    first.registry().on_parts_changed();
    first.deliver();
  }

  // Joins both ranks. Rank r resumes and has consumed rounds[r] rounds of each chunk.
  void go_to(Desk& desk, const std::vector<uint32_t>& rounds) {
    ids.clear();
    for (const uint32_t rank : {0u, 1u}) ids.push_back(resume(desk, rank, rounds[rank]));
  }

  // Carries the second box's question to the first, and the answer back. Returns false if there is
  // no question.
  bool carry() {
    if (second.parts.box_questions.empty()) return false;
    const auto asked = second.parts.box_questions.front();
    second.parts.box_questions.erase(second.parts.box_questions.begin());
    CHECK(asked.box == "first");
    const ConnectionId id = first.open();
    first.say(id, asked.question);
    const auto answer = first.take(id).at(0);
    if (answer.has_failure()) {
      asked.done(
          Error{static_cast<ErrorCode>(answer.failure().code()), answer.failure().message()});
    } else {
      asked.done(answer);
    }
    second.deliver();
    return true;
  }

  // Returns the answer to a rank at the second box.
  std::pair<proto::Session, proto::RoundMap> answer(uint32_t rank) {
    const auto messages = second.take(ids[rank]);
    REQUIRE(messages.size() == 2);
    return {messages[0].session(), messages[1].rounds()};
  }

  void check_goes_on() {
    for (const uint32_t rank : {0u, 1u}) {
      const auto [session, rounds] = answer(rank);
      CHECK_FALSE(session.optimizer_restarted());
      CHECK(session.epoch() > 0);
      CHECK(rounds.give().empty());
      CHECK(std::count(rounds.rounds().begin(), rounds.rounds().end(), kRounds) == 4);
    }
    const auto chunks = chunks_of(second);
    REQUIRE(chunks.size() == 4);
    for (const pipeline::Chunk* chunk : chunks) CHECK(is_trained(*chunk));
    CHECK(second.host().shards(0)[0]->optimizer.learning_rate == kRate);
    CHECK(second.registry().totals().optimizer_restarts == 0);
  }

  void check_restarts() {
    for (const uint32_t rank : {0u, 1u}) CHECK(answer(rank).first.optimizer_restarted());
    CHECK(second.registry().totals().optimizer_restarts == 1);
  }
};

bool noted(Desk& desk, const std::string& event, const std::string& text) {
  const auto events = desk.registry().take_events();
  return std::any_of(events.begin(), events.end(), [&](const RegistryEvent& one) {
    return one.name == event && one.text.find(text) != std::string::npos;
  });
}

}  // namespace

TEST_CASE(
    "a part in mode optimize goes on at another box as it was, whoever lacks the last result") {
  Boxes boxes;
  boxes.move_away();
  CHECK(boxes.first.job_count() == 0);
  CHECK(boxes.first.registry().states_kept() == 1);
  CHECK(boxes.first.registry().memory_taken_bytes() == 3 * sizeof(float) * 20007);
  boxes.go_to(boxes.second, {kRounds, kRounds - 1});
  for (const ConnectionId id : boxes.ids) CHECK(boxes.second.take(id).empty());
  while (boxes.carry()) {
  }
  boxes.check_goes_on();
  // The first box keeps the state until a round has finished, because the ranks may have to begin
  // from it once more.
  boxes.second.pass(kSecond, boxes.ids);
  CHECK_FALSE(boxes.carry());
  boxes.second.host().shards(0)[0]->rounds_finished.add(1);
  boxes.second.pass(100 * kMilli, boxes.ids);
  CHECK(boxes.carry());
  CHECK(boxes.first.registry().states_kept() == 0);
}

TEST_CASE("a box that is asked for a part which it believes to have gives it up") {
  Boxes boxes;
  boxes.go_to(boxes.second, {kRounds, kRounds});
  CHECK(boxes.first.job_count() == 1);
  while (boxes.carry()) {
  }
  CHECK(boxes.first.job_count() == 0);
  boxes.check_goes_on();
}

TEST_CASE("a part that comes back before others had it goes on from what its box has kept") {
  Boxes boxes;
  boxes.move_away();
  boxes.first.parts.moved.clear();
  boxes.go_to(boxes.first, {kRounds, kRounds});
  for (const ConnectionId id : boxes.ids) {
    const auto messages = boxes.first.take(id);
    REQUIRE(messages.size() == 2);
    CHECK_FALSE(messages[0].session().optimizer_restarted());
  }
  for (const pipeline::Chunk* chunk : chunks_of(boxes.first)) CHECK(is_trained(*chunk));
  CHECK(boxes.first.registry().states_kept() == 1);
  boxes.first.host().shards(0)[0]->rounds_finished.add(1);
  boxes.first.pass(100 * kMilli, boxes.ids);
  CHECK(boxes.first.registry().states_kept() == 0);
}

TEST_CASE("a box that does not answer is not waited for, and the optimizer begins anew") {
  Boxes boxes;
  boxes.go_to(boxes.second, {kRounds, kRounds});
  boxes.second.pass(7'900 * kMilli, boxes.ids);
  const auto said = boxes.second.take(boxes.ids[0]);
  CHECK(std::none_of(said.begin(), said.end(), [](const auto& one) { return one.has_session(); }));
  boxes.second.take(boxes.ids[1]);
  boxes.second.pass(200 * kMilli);
  CHECK(noted(boxes.second, "part_state_lost", "job 'train': box first"));
  boxes.check_restarts();
}

TEST_CASE("so it is with a box that is not known, or that has nothing of the part") {
  Boxes boxes;
  SECTION("not known") {
    boxes.second.parts.knows_boxes = false;
  }
  SECTION("another epoch") {
    for (auto& session : boxes.sessions) session.set_epoch(session.epoch() + 1);
  }
  boxes.go_to(boxes.second, {kRounds, kRounds});
  boxes.carry();
  CHECK(noted(boxes.second, "part_state_lost", "did not hand over its state"));
  boxes.check_restarts();
}

TEST_CASE("a state that the ranks are beyond is not used") {
  Boxes boxes;
  boxes.move_away();
  boxes.go_to(boxes.second, {kRounds + 1, kRounds});
  while (boxes.carry()) {
  }
  CHECK(noted(boxes.second, "part_state_misfit", "first"));
  boxes.check_restarts();
}

TEST_CASE("a state of another job of that name is not used") {
  Boxes boxes;
  boxes.move_away();
  boxes.first.parts.moved.clear();
  boxes.ids.clear();
  for (const uint32_t rank : {0u, 1u}) {
    auto message = boxes.join(rank);
    message.mutable_join()->mutable_tensors(0)->set_elements(20'001);  // equally many chunks
    boxes.ids.push_back(boxes.resume(boxes.first, rank, kRounds, message));
  }
  CHECK(noted(boxes.first, "part_state_misfit", "first"));
  for (const ConnectionId id : boxes.ids) {
    CHECK(boxes.first.take(id).at(0).session().optimizer_restarted());
  }
}

TEST_CASE("a state that nobody asks for is dropped in the end, and one of a job before at once") {
  Boxes boxes;
  boxes.move_away();
  SECTION("in the end") {
    boxes.first.pass(39 * kSecond);
    CHECK(boxes.first.registry().states_kept() == 1);
    boxes.first.pass(2 * kSecond);
    CHECK(noted(boxes.first, "part_state_dropped", "part 0 of job 'train'"));
  }
  SECTION("a job of that name begins") {
    boxes.first.parts.moved.clear();
    for (const uint32_t rank : {0u, 1u}) boxes.first.join(join_optimizing(rank));
  }
  CHECK(boxes.first.registry().states_kept() == 0);
}

TEST_CASE("a box that shuts down lets nobody in, and still hands over what has gone elsewhere") {
  Boxes boxes;
  boxes.move_away();
  boxes.first.shut_down();
  CHECK(boxes.first.is_closed(boxes.first.join(join_optimizing(0))));
  CHECK(boxes.first.registry().states_kept() == 1);
  boxes.go_to(boxes.second, {kRounds, kRounds});
  while (boxes.carry()) {
  }
  boxes.check_goes_on();
}

TEST_CASE("a part whose model is not bsp goes on where each rank was") {
  Boxes boxes(wire::SyncModel::kSsp);
  boxes.move_away();
  CHECK(boxes.first.registry().states_kept() == 1);
  boxes.go_to(boxes.second, {kRounds, kRounds});
  while (boxes.carry()) {
  }
  uint32_t epoch = 0;
  for (const uint32_t rank : {0u, 1u}) {
    const auto [session, rounds] = boxes.answer(rank);
    CHECK_FALSE(session.optimizer_restarted());
    if (rank == 0) epoch = session.epoch();
    const uint32_t next = kRounds + (rank == 0 ? 1 : 0);
    CHECK(std::count(rounds.rounds().begin(), rounds.rounds().end(), next) == 4);
  }
  for (const pipeline::Chunk* chunk : chunks_of(boxes.second)) {
    CHECK(is_trained(*chunk));
    CHECK(chunk->sync->progress.next(0) == kRounds + 1);
    CHECK(chunk->sync->progress.is_parked(0));
    CHECK(chunk->claimed[1] == (chunk->fragment_count > 1 ? kPushed : 0));
    CHECK(chunk->sync->updates[chunk->fragment_count - 1] == 2 * kRounds);
  }
  // A rank that has not heard of the new epoch is admitted again. A lost rank that has continues.
  CHECK_FALSE(boxes.second.is_closed(boxes.resume(boxes.second, 1, kRounds)));
  boxes.sessions[0].set_epoch(epoch);
  boxes.ids[0] = boxes.resume(boxes.second, 0, kRounds);
  const auto rounds = boxes.answer(0).second;
  CHECK(std::count(rounds.rounds().begin(), rounds.rounds().end(), kRounds + 1) == 4);
}

TEST_CASE("a part of model drop goes on, however far a rank was behind") {
  Boxes boxes(wire::SyncModel::kDrop);
  boxes.move_away();
  boxes.go_to(boxes.second, {kRounds, kRounds - 3});
  while (boxes.carry()) {
  }
  for (const uint32_t rank : {0u, 1u}) CHECK(boxes.answer(rank).second.rounds(0) == kRounds);
  for (const pipeline::Chunk* chunk : chunks_of(boxes.second)) CHECK(is_trained(*chunk));
}

TEST_CASE("without its state such a part goes on nowhere, and its ranks are told why") {
  Boxes boxes(wire::SyncModel::kAsp);
  boxes.move_away();
  std::vector<uint32_t> rounds = {kRounds, kRounds};
  SECTION("nobody has it") {
    boxes.second.parts.knows_boxes = false;
  }
  SECTION("its ranks are beyond it") {
    rounds[0] = kRounds + 2;
  }
  SECTION("they are before it") {
    rounds[1] = kRounds - 2;
  }
  boxes.go_to(boxes.second, rounds);
  while (boxes.carry()) {
  }
  for (const ConnectionId id : boxes.ids) {
    const auto failure = boxes.second.take_failure(id);
    CHECK(failure.code() == static_cast<uint32_t>(ErrorCode::kBoxLost));
    CHECK_THAT(failure.message(), Contains("sync.model asp") && Contains("from a checkpoint"));
  }
  CHECK(boxes.second.job_count() == 0);
}

TEST_CASE("without its state such a part begins anew if none of its ranks has a result") {
  Boxes boxes(wire::SyncModel::kAsp);
  boxes.move_away();
  boxes.second.parts.knows_boxes = false;
  boxes.go_to(boxes.second, {0, 0});
  while (boxes.carry()) {
  }
  CHECK(boxes.second.job_count() == 1);
  for (const uint32_t rank : {0u, 1u}) CHECK(boxes.answer(rank).second.rounds(0) == 0);
}

TEST_CASE("such a part keeps its fragments, or ends where a path cannot hold them") {
  Boxes boxes(wire::SyncModel::kAsp);
  const uint32_t fragment_bytes = boxes.sessions[0].fragment_bytes();
  boxes.move_away();
  SECTION("paths are wider") {
    boxes.path_mtu = 65'536;
    boxes.go_to(boxes.second, {kRounds, kRounds});
    while (boxes.carry()) {
    }
    CHECK(boxes.answer(0).first.fragment_bytes() == fragment_bytes);
  }
  SECTION("one is narrower") {
    boxes.path_mtu = 1'500;
    boxes.go_to(boxes.second, {kRounds, kRounds});
    while (boxes.carry()) {
    }
    const auto failure = boxes.second.take_failure(boxes.ids[0]);
    CHECK_THAT(failure.message(), Contains("fragments of " + std::to_string(fragment_bytes)) &&
                                      Contains("give all boxes the same MTU"));
  }
}

TEST_CASE("an excluded rank cannot slip back into a part whose model keeps no clock of it") {
  Boxes boxes(wire::SyncModel::kSsp);
  boxes.move_away();
  auto survivor = boxes.join(0);
  survivor.mutable_join()->add_absent_ranks(1);
  auto newcomer = boxes.join(1);
  newcomer.mutable_join()->set_rejoins(true);
  ConnectionId excluded = 0;
  SECTION("it comes first") {
    excluded = boxes.second.join(newcomer);
    boxes.resume(boxes.second, 0, kRounds, survivor);
  }
  SECTION("it comes last") {
    boxes.resume(boxes.second, 0, kRounds, survivor);
    excluded = boxes.second.join(newcomer);
  }
  const auto failure = boxes.second.take_failure(excluded);
  CHECK(failure.code() == static_cast<uint32_t>(ErrorCode::kWorkerLost));
  CHECK_THAT(failure.message(), Contains("rank 1") && Contains("keeps no clock"));
  while (boxes.carry()) {
  }
  CHECK(boxes.second.registry().views(boxes.second.now_ns()).at(0).state == "running");
  CHECK_FALSE(chunks_of(boxes.second)[0]->sync->progress.takes_part(1));
  CHECK(boxes.second.registry().totals().workers_excluded == 0);  // it was so before
}

TEST_CASE("a tenant that has only a kept state here is listed with it") {
  Boxes boxes;
  boxes.move_away();
  CHECK(boxes.first.job_count() == 0);
  const auto tenants = boxes.first.registry().tenants();
  REQUIRE(tenants.contains(""));
  CHECK(tenants.at("").jobs == 0);
  CHECK(tenants.at("").memory_bytes == boxes.first.registry().memory_taken_bytes());
  CHECK(tenants.at("").memory_bytes > 0);
}

}  // namespace pbox::control::job_registry_state_test
