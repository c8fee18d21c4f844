// Parts of which another box has a copy: when they begin, what happens when the backup box is lost,
// and how they continue from the copy when their own box is lost. The test stands in for the lanes.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>

#include "appliance/control/job_relay.h"
#include "pipeline/state/chunk_state.h"
#include "tests/unit/appliance/control/registry_desk.h"

namespace pbox::control::job_registry_backup_test {
namespace {

using Catch::Contains;
using optimizer::OptimizerKind;

constexpr uint64_t kRounds = 5;
constexpr float kRate = 0.375f;  // learning rate that rank 1 has set
// Elements of each chunk of join_message()'s job.
constexpr std::array<uint32_t, 4> kElements = {8064, 8064, 20'000 - 2 * 8064, 7};

// The record of a relay, which outlives the relay.
struct WayLog {
  std::string address;
  RelaySpec spec;
  std::function<void(Status)> on_change;
  std::vector<std::vector<float>> seeds;
  size_t lanes = 0;
  bool is_gone = false;
};

class TestBackups : public BackupBoxes {
 public:
  std::unique_ptr<Relay> join(const std::string& address, RelaySpec spec,
                              std::function<void(Status)> on_change) override {
    logs.push_back(std::make_unique<WayLog>());
    *logs.back() = {address, std::move(spec), std::move(on_change), {}, 0, false};
    return std::make_unique<Way>(*logs.back());
  }
  std::vector<std::unique_ptr<WayLog>> logs;

 private:
  class Way : public Relay {
   public:
    explicit Way(WayLog& log) : log_(log) {}
    ~Way() override { log_.is_gone = true; }
    void seed(std::vector<std::vector<float>> values) override { log_.seeds = std::move(values); }
    void run(std::vector<RelayLane> lanes) override { log_.lanes = lanes.size(); }
    void set_priorities(std::vector<int32_t>) override {}
    RelayView view() const override { return {}; }

   private:
    WayLog& log_;
  };
};

proto::PartPlace place_of(const std::string& box) {
  proto::PartPlace place;
  place.set_box(box);
  place.set_address(box + ":9541");
  return place;
}

proto::WorkerMessage join_copied(uint32_t rank) {
  auto message = join_optimizing(rank);
  message.mutable_join()->set_replicas(1);
  return message;
}

bool noted(Desk& desk, const std::string& event, const std::string& text) {
  const auto events = desk.registry().take_events();
  return std::any_of(events.begin(), events.end(), [&](const RegistryEvent& one) {
    return one.name == event && one.text.find(text) != std::string::npos;
  });
}

// Sets all chunks to a state as after kRounds rounds.
void train(Desk& desk) {
  for (pipeline::Chunk* chunk : chunks_of(desk)) {
    chunk->rounds_finished = chunk->fanned_out_rounds = kRounds;
    std::fill_n(chunk->weights, chunk->elements, static_cast<float>(chunk->id) + 0.5f);
  }
}

struct Home {
  TestBackups backups;
  Desk desk;
  std::vector<ConnectionId> ids;

  explicit Home(const std::vector<std::string>& others = {"east", "west"}, uint64_t seed = 1)
      : desk({.box_name = "home", .draw = seeded_draws(seed)}, 2, nullptr, nullptr, &backups) {
    for (const std::string& box : others) desk.parts.backup_places.push_back(place_of(box));
    desk.parts.knows_boxes = true;
  }
  void join() {
    for (const uint32_t rank : {0u, 1u}) ids.push_back(desk.join(join_copied(rank)));
  }
  WayLog& way() { return *backups.logs.back(); }
  void tell(const Status& status) {
    way().on_change(status);
    desk.deliver();
  }
  proto::Session session(uint32_t rank) {
    const auto said = desk.take(ids[rank]);
    REQUIRE_FALSE(said.empty());
    REQUIRE(said[0].has_session());
    return said[0].session();
  }
  void start() {
    join();
    tell(ok_status());
  }
  // Joins both ranks, which resume after the session `former` and have consumed `rounds` rounds.
  void resume(const proto::Session& former, uint64_t rounds) {
    ids.clear();
    for (const uint32_t rank : {0u, 1u}) {
      auto message = join_copied(rank);
      message.mutable_join()->set_resumes(true);
      message.mutable_join()->set_epoch(former.epoch());
      message.mutable_join()->set_generation(former.generation());
      message.mutable_join()->set_box(former.box());
      *message.mutable_join()->mutable_copy() = former.copy();
      message.mutable_join()->set_learning_rates_set(rank);
      message.mutable_join()->set_learning_rate(kRate);
      ids.push_back(desk.join(message));
      proto::WorkerMessage stated;
      for (int chunk = 0; chunk < 4; ++chunk) {
        stated.mutable_rounds()->add_rounds(static_cast<uint32_t>(rounds));
      }
      stated.mutable_rounds()->set_last(true);
      desk.say(ids.back(), stated);
    }
  }
  uint32_t parts_without() {
    return desk.registry().views(desk.now_ns()).at(0).backup->parts_without;
  }
};

// Joins the backup box as the primary, and leaves it as in the middle of a push: the first piece of
// each block of several pieces is a round ahead of the others. Returns the primary's connection.
ConnectionId push_copy(Desk& east) {
  auto copy = join_message("train#0~77", 0, 1);
  copy.mutable_join()->set_is_backup(true);
  copy.mutable_join()->set_recovery(1);
  copy.mutable_join()->set_delivery(1);
  copy.mutable_join()->clear_tensors();
  const auto add_tensor = [&](size_t floats) {
    auto& tensor = *copy.mutable_join()->add_tensors();
    tensor.set_name("chunk" + std::to_string(copy.join().tensors_size()));
    tensor.set_elements(floats);
    tensor.set_lr_scale(1);
  };
  add_tensor(1);  // for the number of workers
  for (const uint32_t elements : kElements) {
    add_tensor(pipeline::StateLayout::block(OptimizerKind::kAdam, elements).floats);
  }
  const ConnectionId pusher = east.join(copy);
  REQUIRE(east.take(pusher).at(0).has_session());
  const auto chunks = chunks_of(east);
  size_t next = 1;
  for (uint32_t chunk = 0; chunk < kElements.size(); ++chunk) {
    const uint32_t elements = kElements[chunk];
    const float value = static_cast<float>(chunk) + 0.5f;
    const pipeline::ChunkState state{.chunk = chunk,
                                     .rounds_finished = kRounds,
                                     .steps = kRounds - 1,
                                     .values = std::vector<float>(3 * size_t{elements}, value),
                                     .contributors = {}};
    const auto block = pipeline::encode_block(state, OptimizerKind::kAdam, elements);
    for (size_t done = 0; done < block.size(); done += chunks[next++]->elements) {
      pipeline::Chunk& piece = *chunks[next];
      std::copy_n(block.data() + done, piece.elements, piece.accumulator[1]);
      std::fill_n(piece.accumulator[0], piece.elements, -1.0f);
      piece.rounds_finished = done == 0 && piece.elements < block.size() ? 3 : 2;
    }
  }
  REQUIRE(next == chunks.size());
  return pusher;
}

// Carries questions to the other box, and its answers back.
void carry(Home& home, Desk& east) {
  const auto asked = home.desk.parts.box_questions.at(0);
  home.desk.parts.box_questions.clear();
  const auto id = east.open();
  east.say(id, asked.question);
  const auto answer = east.take(id).at(0);
  REQUIRE(answer.has_part_state());
  CHECK_FALSE(answer.part_state().has_learning_rate());
  asked.done(answer);
  home.desk.deliver();
}

}  // namespace

TEST_CASE(
    "two boxes give their copies different names, also after both have read their options anew") {
  std::vector<std::string> names;
  for (const uint64_t seed : {5u, 6u}) {
    Home home({"east"}, seed);
    home.desk.registry().set_options({.box_name = "home"});
    home.join();
    names.push_back(home.way().spec.job);
  }
  CHECK(names[0] != names[1]);
}

TEST_CASE("a part that wants a copy begins when its backup box is in, and says which it is") {
  Home home;
  home.join();
  REQUIRE(home.backups.logs.size() == 1);
  CHECK(home.desk.take(home.ids[0]).empty());
  CHECK(home.way().address == "east:9541");
  CHECK(home.way().spec.is_backup);
  CHECK_THAT(home.way().spec.job, Catch::StartsWith("train#0~"));
  const auto block = pipeline::StateLayout::block(OptimizerKind::kAdam,
                                                  home.way().spec.chunks.size() == 4 ? 8064 : 0);
  CHECK(home.way().spec.chunks[0].elements == block.floats);
  home.tell(ok_status());
  const proto::Session session = home.session(1);
  CHECK(session.copy().box() == "east");
  CHECK(session.copy().job() == home.way().spec.job);
  CHECK(home.way().lanes == 2);
  CHECK(home.way().seeds.empty());
  CHECK(home.desk.host().shards(0).at(0)->has_uplinks());
  CHECK(home.parts_without() == 0);
}

TEST_CASE("a job that cannot have a copy is refused with a reason") {
  Home home;
  const auto refusal = [&](const std::function<void(proto::Join&)>& change) {
    auto message = join_copied(0);
    change(*message.mutable_join());
    return home.desk.take_failure(home.desk.join(message)).message();
  };
  CHECK_THAT(refusal([](auto& join) { join.set_mode(0); }), Contains("needs mode optimize"));
  CHECK_THAT(refusal([](auto& join) { join.set_recovery(1); }), Contains("recovery copy"));
  CHECK_THAT(refusal([](auto& join) { join.set_on_worker_lost(1); }),
             Contains("set on_worker_lost wait or abort"));
  CHECK_THAT(refusal([](auto& join) {
               join.set_recovery(1);
               join.mutable_sync()->set_model(static_cast<uint32_t>(wire::SyncModel::kAsp));
             }),
             Contains("needs sync model bsp or drop: with asp every push changes the weights"));
  CHECK_THAT(refusal([](auto& join) { join.set_replicas(2); }), Contains("replicas 2"));
  CHECK_THAT(refusal([](auto& join) { join.set_is_backup(true); }), Contains("is only for a box"));
  Desk alone;
  CHECK_THAT(alone.take_failure(alone.join(join_copied(0))).message(),
             Contains("[cluster] store = etcd"));
  const auto first = home.desk.join(join_copied(0));
  CHECK_THAT(home.desk.take_failure(home.desk.join(join_optimizing(1))).message(),
             Contains("replicas"));
  CHECK(home.desk.take(first).empty());
}

TEST_CASE("a job of model drop may have a copy, which has its clocks, and goes on from it") {
  auto message = join_copied(0);
  proto::Join& join = *message.mutable_join();
  close_with_one(join);
  join.set_on_worker_lost(static_cast<uint32_t>(LostPolicy::kPartial));
  const JobSpec spec = spec_of(message);
  CHECK(check_replicas(spec));
  CHECK(spec.survives_its_box());
  const RelaySpec copy = backup_spec(spec, "copy");
  CHECK(copy.has_clocks);
  const auto elements = cut_into_chunks(spec).at(0).elements;
  CHECK(copy.chunks.at(0).elements ==
        pipeline::StateLayout::block(OptimizerKind::kAdam, elements, spec.world_size).floats);
  join.set_replicas(0);
  CHECK_FALSE(spec_of(message).survives_its_box());
}

TEST_CASE("boxes that refuse are passed over, and a part begins without a copy in the end") {
  Home home;
  home.join();
  home.tell(Error{ErrorCode::kResourceExhausted, "no memory"});
  CHECK(home.backups.logs.at(0)->is_gone);
  REQUIRE(home.backups.logs.size() == 2);
  CHECK(home.way().address == "west:9541");
  CHECK(noted(home.desk, "backup_refused", "box east cannot have a copy of it: no memory"));
  home.tell(Error{ErrorCode::kUnavailable, "nobody is there"});
  CHECK(noted(home.desk, "backup_missing", "2 asked"));
  CHECK_FALSE(home.session(0).has_copy());
  CHECK_FALSE(home.desk.host().shards(0).at(0)->has_uplinks());
  CHECK(home.parts_without() == 1);

  // Boxes are asked again until one can have a copy. Meanwhile the ranks go on.
  home.desk.pass(kSecond + 200 * kMilli, home.ids);
  REQUIRE(home.backups.logs.size() == 3);
  home.tell(Error{ErrorCode::kUnavailable, "still nobody"});
  home.desk.pass(3 * kSecond, home.ids);
  CHECK(home.backups.logs.size() == 3);  // it waits longer each time
  home.desk.pass(2 * kSecond, home.ids);
  REQUIRE(home.backups.logs.size() == 4);
  CHECK(home.desk.job_count() == 1);
  CHECK_FALSE(home.desk.is_closed(home.ids[0]));
  home.tell(ok_status());
  CHECK(noted(home.desk, "backup_found", "can have a copy"));
  CHECK(home.desk.is_closed(home.ids[0]));
  CHECK(home.way().is_gone);
}

TEST_CASE("a part whose backup box is lost goes on here, with the next, from where it was") {
  Home home;
  home.start();
  const proto::Session former = home.session(0);
  train(home.desk);
  const auto first = chunks_of(home.desk).at(0);
  first->is_stepped = true;  // round 6 was being copied, and nobody has seen its result
  home.tell(Error{ErrorCode::kBoxLost, "the connection ended"});
  CHECK(noted(home.desk, "backup_lost", "box east, which has its copy, does not answer"));
  CHECK(home.desk.is_closed(home.ids[0]));
  CHECK(home.desk.registry().totals().backups_lost == 1);
  home.desk.parts.backup_places.erase(home.desk.parts.backup_places.begin());

  home.resume(former, kRounds);
  REQUIRE(home.backups.logs.size() == 2);
  CHECK(home.way().address == "west:9541");
  home.tell(ok_status());
  REQUIRE(home.way().seeds.size() == 4);  // before the ranks go on
  CHECK(home.desk.take(home.ids[0]).empty());
  CHECK(pipeline::decode_block(home.way().seeds[0], 0)->rounds_finished == kRounds + 1);
  const auto seed = pipeline::decode_block(home.way().seeds[3], 3);
  CHECK(seed->rounds_finished == kRounds);
  CHECK(seed->values[0] == 3.5f);
  home.tell(ok_status());
  CHECK(home.session(0).copy().box() == "west");
  CHECK_FALSE(home.session(1).optimizer_restarted());
  CHECK(chunks_of(home.desk).at(0)->rounds_finished == kRounds + 1);
  CHECK(chunks_of(home.desk).at(3)->weights[0] == 3.5f);
}

TEST_CASE("a backup box that is not there any more, or drains, is left for another") {
  Home home;
  home.start();
  auto& places = home.desk.parts.backup_places;
  const auto all = places;
  places = {all[1]};
  home.desk.pass(kSecond, home.ids);
  places = all;  // east was unreachable for a moment
  home.desk.pass(3 * kSecond, home.ids);
  places.clear();  // no other box is there, either
  home.desk.pass(3 * kSecond, home.ids);
  CHECK_FALSE(home.way().is_gone);
  places = {all[1]};
  home.desk.pass(1'900 * kMilli, home.ids);
  CHECK_FALSE(home.way().is_gone);
  home.desk.pass(300 * kMilli, home.ids);
  CHECK(home.way().is_gone);
  CHECK(noted(home.desk, "backup_lost", "box east, which has its copy, is no longer registered"));
  CHECK(home.desk.is_closed(home.ids[0]));
}

TEST_CASE("where the box of a part is lost its backup box is asked, and what it has is used") {
  Home home;
  proto::Session former;
  former.set_epoch(3);
  former.set_box(GENERATE("lost", "home"));  // a box that began again has nothing either
  former.mutable_copy()->set_box("east");
  former.mutable_copy()->set_job("train#0~77");
  home.resume(former, kRounds - 1);
  auto& questions = home.desk.parts.box_questions;
  if (former.box() == "lost") {
    REQUIRE(questions.size() == 1);
    CHECK(questions[0].box == "lost");
    CHECK_FALSE(questions[0].question.ask_state().is_backup());
    const auto done = questions[0].done;
    questions.clear();
    done(Error{ErrorCode::kUnavailable, "it is not registered"});
    CHECK(noted(home.desk, "part_copy_asked_for", "box east is asked for its backup copy"));
  }
  REQUIRE(questions.size() == 1);
  CHECK(questions[0].box == "east");
  const proto::AskState& question = questions[0].question.ask_state();
  CHECK(question.is_backup());
  CHECK(question.job() == "train#0~77");
  CHECK(question.epoch() == 3);

  Desk east{{.box_name = "east"}};
  const ConnectionId pusher = push_copy(east);
  const bool has_left = GENERATE(false, true);
  if (has_left) east.hang_up(pusher);
  CHECK(east.registry().memory_taken_bytes() > 0);
  CHECK(east.job_count() == (has_left ? 0 : 1));
  while (!questions.empty()) carry(home, east);
  CHECK(east.job_count() == 0);
  CHECK(east.registry().memory_taken_bytes() == 3 * sizeof(float) * 20'007);
  home.tell(ok_status());  // the new backup box has joined
  REQUIRE(home.way().seeds.size() == 4);
  home.tell(ok_status());
  const proto::Session session = home.session(0);
  CHECK_FALSE(session.optimizer_restarted());
  CHECK(session.copy().job() != former.copy().job());
  CHECK(home.desk.host().shards(0).at(0)->optimizer.learning_rate == kRate);
  for (const pipeline::Chunk* chunk : chunks_of(home.desk)) {
    CHECK(chunk->rounds_finished == kRounds);
    CHECK(chunk->weights[0] == static_cast<float>(chunk->id) + 0.5f);
    CHECK(chunk->steps() == kRounds - 1);
  }
  // Once a round has finished, nobody needs the old copy.
  for (auto* shard : home.desk.host().shards(0)) shard->rounds_finished.add(1);
  home.desk.pass(200 * kMilli, home.ids);
  REQUIRE(questions.size() == 1);
  CHECK(questions[0].box == "east");
  const auto id = east.open();
  east.say(id, questions[0].question);
  CHECK(east.registry().memory_taken_bytes() == 0);
}

TEST_CASE("a copy that nobody needs any more is said to be so") {
  Home home;
  home.start();
  const std::string copy = home.session(0).copy().job();
  for (const ConnectionId id : home.ids) home.desk.say(id, leave_message());
  CHECK(home.way().is_gone);
  REQUIRE(home.desk.parts.box_questions.size() == 1);
  const auto& told = home.desk.parts.box_questions[0];
  CHECK(told.box == "east");
  CHECK(told.question.ask_state().taken());
  CHECK(told.question.ask_state().is_backup());
  CHECK(told.question.ask_state().job() == copy);
}

TEST_CASE("a copy stays where it is, wherever parts of such a name should be") {
  Desk east{{.box_name = "east"}};
  east.parts.moved[{"train#0~77", 0}] = place_of("west");
  auto copy = join_message("train#0~77", 0, 1);
  copy.mutable_join()->set_is_backup(true);
  copy.mutable_join()->set_recovery(1);
  copy.mutable_join()->set_delivery(1);
  const auto id = east.join(copy);
  CHECK(east.take(id).at(0).has_session());
  east.registry().on_parts_changed();
  east.deliver();
  CHECK(east.job_count() == 1);
  CHECK(east.registry().views(east.now_ns()).at(0).is_backup);
}

}  // namespace pbox::control::job_registry_backup_test
