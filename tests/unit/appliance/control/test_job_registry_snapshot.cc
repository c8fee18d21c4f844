// Snapshots that the box takes of its parts, and jobs that begin with a snapshot.
#include <algorithm>
#include <catch2/catch.hpp>
#include <deque>

#include "nic/wire/control_versions.h"
#include "tests/unit/appliance/control/registry_desk.h"

namespace pbox::control::job_registry_snapshot_test {
namespace {

using Catch::Contains;

constexpr uint64_t kRounds = 5;

// A snapshot store in memory that carries out a request only when the test says so.
class SlowShelf : public snapshot::SnapshotStore {
 public:
  void begin(const std::string&, std::function<void(Result<uint64_t>)> done) override {
    owed.push_back([this, done] { done(++numbers); });
  }
  void write_part(uint64_t number, snapshot::PartHead head, snapshot::Cuts cuts,
                  std::function<void(Result<snapshot::PartFile>)> done) override {
    owed.push_back([=, this] {
      heads[number] = head;
      written[number] = cuts;
      if (disk_is_full) return done(Error{ErrorCode::kSystem, "the disk is full"});
      done(snapshot::PartFile{.box = {}, .name = "a file", .bytes = 77, .crc32c = 5});
    });
  }
  void finish(snapshot::Manifest manifest, std::function<void(Status)> done) override {
    owed.push_back([=, this] {
      manifests.push_back(manifest);
      done(ok_status());
    });
  }
  void discard(const std::string&, uint64_t) override {}
  void load(snapshot::PartHead part, snapshot::Choice choice,
            std::function<void(Result<snapshot::Restored>)> done) override {
    loads.push_back({part, choice.which, choice, done});
  }

  // Carries out the oldest request.
  void act() {
    REQUIRE_FALSE(owed.empty());
    const auto next = owed.front();
    owed.pop_front();
    next();
  }

  std::deque<std::function<void()>> owed;
  uint64_t numbers = 0;
  bool disk_is_full = false;
  std::map<uint64_t, snapshot::PartHead> heads;
  std::map<uint64_t, snapshot::Cuts> written;
  std::vector<snapshot::Manifest> manifests;
  struct Load {
    snapshot::PartHead part;
    std::string which;
    snapshot::Choice choice;
    std::function<void(Result<snapshot::Restored>)> done;
  };
  std::vector<Load> loads;
};

struct Office {
  SlowShelf shelf;
  Desk desk;
  std::vector<ConnectionId> ids;
  std::vector<proto::Session> sessions;

  explicit Office(const RegistryOptions& options = {.box_name = "here"})
      : desk(options, 2, &shelf) {}

  void start() {
    for (const uint32_t rank : {0u, 1u}) ids.push_back(desk.join(join_optimizing(rank)));
    for (const ConnectionId id : ids) sessions.push_back(desk.take(id).at(0).session());
  }
  // Joins a rank that was in the job before its box was lost. `rounds`: by chunk, the next round
  // that the rank needs.
  void resume(proto::WorkerMessage message, const std::vector<uint32_t>& rounds) {
    message.mutable_join()->set_resumes(true);
    message.mutable_join()->set_epoch(1);
    message.mutable_join()->set_generation(1);
    ids.push_back(desk.join(message));
    proto::WorkerMessage stated;
    for (const uint32_t round : rounds) stated.mutable_rounds()->add_rounds(round);
    stated.mutable_rounds()->set_last(true);
    desk.say(ids.back(), stated);
  }
  // Sets all chunks to a state as after `rounds` rounds.
  void train(uint64_t rounds) {
    for (pipeline::Chunk* chunk : chunks_of(desk)) {
      chunk->rounds_finished = chunk->fanned_out_rounds = rounds;
      std::fill_n(chunk->weights, chunk->elements, static_cast<float>(chunk->id));
      std::fill_n(chunk->optimizer_state, 2 * chunk->elements, static_cast<float>(rounds));
    }
  }
  void begin_snapshot(double timeout_s = 60) {
    REQUIRE(desk.registry().begin_snapshot("train", static_cast<uint64_t>(timeout_s * 1e9),
                                           desk.now_ns()));
  }
  // Carries out the oldest request to the snapshot store, and answers the question where the job's
  // parts are.
  void act() {
    shelf.act();
    if (desk.parts.answers.empty()) return;
    proto::PartMap plan;
    plan.add_parts();
    desk.parts.answers.back()(plan);
    desk.parts.answers.clear();
  }
  SnapshotView view() { return *desk.registry().snapshot("train"); }
  void tick() { desk.pass(50 * kMilli, ids); }
};

snapshot::Restored restored(uint64_t number, const std::vector<pipeline::Chunk*>& like) {
  snapshot::Restored restored{.number = number, .steps = 1'000, .chunks = {}};
  for (const pipeline::Chunk* chunk : like) {
    pipeline::ChunkState state{
        .chunk = chunk->id, .rounds_finished = 1, .steps = 900, .values = {}, .contributors = {}};
    state.values.assign(3 * size_t{chunk->elements}, 0.25f);
    restored.chunks.push_back(std::move(state));
  }
  return restored;
}

proto::WorkerMessage join_restoring(uint32_t rank, const std::string& which) {
  auto message = join_optimizing(rank);
  message.mutable_join()->set_restore(which);
  return message;
}

}  // namespace

TEST_CASE("a snapshot of a job that rests is there in a few ticks, and says what it has") {
  Office office;
  office.start();
  office.train(kRounds);
  const uint64_t before = office.desk.registry().memory_taken_bytes();
  office.begin_snapshot();
  CHECK(office.view().state == std::string("starting"));
  office.act();  // gives the snapshot a number; all chunks are copied at once
  CHECK(office.view().state == std::string("writing"));
  CHECK(office.view().chunks_copied == 4);
  CHECK(office.desk.registry().memory_taken_bytes() > before);
  office.act();
  office.tick();
  CHECK(office.desk.registry().memory_taken_bytes() == before);
  office.act();  // writes the manifest
  office.tick();
  CHECK(office.view().state == std::string("done"));
  CHECK(office.view().steps == kRounds - 1);
  REQUIRE(office.shelf.manifests.size() == 1);
  const snapshot::Manifest& manifest = office.shelf.manifests[0];
  CHECK(manifest.job == "train");
  CHECK(manifest.number == 1);
  CHECK(manifest.steps == kRounds - 1);
  CHECK(manifest.taken_at.size() == 20);
  REQUIRE(manifest.parts.size() == 1);
  CHECK(manifest.parts[0].box == "here");
  CHECK(manifest.parts[0].bytes == 77);
  CHECK(office.shelf.heads[1].tensors.at(1).name == "bias");
  size_t copies = 0;
  for (const auto& cut : office.shelf.written[1]) {
    for (const auto& copy : cut->copies()) {
      ++copies;
      CHECK(copy.weights.front() == static_cast<float>(copy.chunk));
      CHECK(copy.optimizer_state.back() == static_cast<float>(kRounds));
      CHECK(copy.steps == kRounds - 1);
    }
  }
  CHECK(copies == 4);
  CHECK(office.desk.registry().totals().snapshots_taken == 1);
  for (const pipeline::JobShard* shard : office.desk.host().shards(0)) CHECK(shard->cut == nullptr);
}

TEST_CASE("a cut that some chunk has left is tried again, further ahead") {
  Office office;
  office.start();
  office.train(kRounds);
  office.begin_snapshot();
  chunks_of(office.desk)[2]->rounds_finished = kRounds + 2;
  office.act();  // the cut is where chunk 2 is now
  CHECK(office.view().state == std::string("cutting"));
  CHECK(office.view().chunks_copied == 1);
  office.train(kRounds + 3);  // over it in one leap, which the pipeline does not see
  office.tick();
  office.tick();
  CHECK(office.view().attempts == 2);
  for (int ticks = 0; ticks < 3; ++ticks) office.tick();
  CHECK(office.view().chunks_copied == 0);  // the new cut is one round ahead of the chunks
  office.train(kRounds + 4);
  office.tick();
  CHECK(office.view().state == std::string("writing"));
  office.act();
  office.tick();
  office.act();
  CHECK(office.view().steps == kRounds + 3);
}

TEST_CASE("a snapshot fails with a reason, and leaves nothing behind") {
  Office office;
  SECTION("the job ends") {
    office.start();
    office.train(kRounds);
    office.begin_snapshot();
    chunks_of(office.desk)[0]->rounds_finished = kRounds - 1;
    office.act();
    for (const ConnectionId id : office.ids) office.desk.say(id, leave_message());
    office.tick();
    CHECK_THAT(office.view().error, Contains("ended here"));
  }
  SECTION("the disk is full") {
    office.start();
    office.train(kRounds);
    office.shelf.disk_is_full = true;
    office.begin_snapshot();
    office.act();
    office.act();
    office.tick();
    CHECK_THAT(office.view().error, Contains("box here: the disk is full"));
  }
  SECTION("some ranks do not go on") {
    office.start();
    office.train(kRounds);
    office.begin_snapshot(1);
    chunks_of(office.desk)[0]->rounds_finished = kRounds - 1;
    office.act();
    office.desk.pass(2 * kSecond, office.ids);
    CHECK_THAT(office.view().error, Contains("box here has 3 of 4 chunks at the cut"));
  }
  SECTION("it has no weights") {
    office.start();
    office.begin_snapshot();
    office.act();
    CHECK_THAT(office.view().error, Contains("no weights yet"));
  }
  office.tick();
  CHECK(office.view().state == std::string("failed"));
  CHECK(office.desk.registry().totals().snapshots_failed == 1);
  CHECK(office.shelf.manifests.empty());
  for (const pipeline::JobShard* shard : office.desk.host().shards(0)) CHECK(shard->cut == nullptr);
}

TEST_CASE("a job without snapshots is refused with a reason") {
  Office office;
  CHECK(office.desk.registry().begin_snapshot("train", kSecond, 0).error().code ==
        ErrorCode::kNotFound);
  Office other;
  other.desk.start("sums", 2);
  CHECK_THAT(other.desk.registry().begin_snapshot("sums", kSecond, 0).error().message,
             Contains("mode aggregate"));
  office.start();
  office.train(kRounds);
  office.begin_snapshot();
  CHECK_THAT(office.desk.registry().begin_snapshot("train", kSecond, 0).error().message,
             Contains("is being taken"));
  Desk without;
  for (const uint32_t rank : {0u, 1u}) without.join(join_optimizing(rank));
  CHECK_THAT(without.registry().begin_snapshot("train", kSecond, 0).error().message,
             Contains("[snapshots] directory"));
}

TEST_CASE("memory for a cut is memory of jobs") {
  Office probe;
  probe.start();
  Office office(
      {.box_name = "here", .job_memory_bytes = probe.desk.registry().memory_taken_bytes() + 1000});
  office.start();
  office.train(kRounds);
  office.begin_snapshot();
  office.act();
  CHECK_THAT(office.view().error, Contains("[memory] job_share"));
}

TEST_CASE("snapshots come by themselves every so often") {
  Office office({.box_name = "here", .snapshot_every_ns = 10 * kSecond});
  office.start();
  office.train(kRounds);
  office.desk.pass(9 * kSecond, office.ids);
  CHECK_FALSE(office.desk.registry().snapshot("train"));
  office.desk.pass(2 * kSecond, office.ids);
  CHECK(office.desk.registry().snapshot("train"));
}

TEST_CASE("a cut that nobody asks for any more is forgotten") {
  Office office;
  office.start();
  office.train(kRounds);
  const uint64_t before = office.desk.registry().memory_taken_bytes();
  chunks_of(office.desk)[0]->rounds_finished = kRounds - 1;
  const ConnectionId other = office.desk.open();
  proto::WorkerMessage question;
  question.mutable_ask_cut()->set_protocol_version(wire::kControlProtocolVersion);
  question.mutable_ask_cut()->set_job("train");
  question.mutable_ask_cut()->set_snapshot(9);
  question.mutable_ask_cut()->set_round(kRounds);
  office.desk.say(other, question);
  const auto answer = office.desk.take(other).at(0).cut_progress();
  CHECK(answer.state() == proto::CutProgress::CUTTING);
  CHECK(answer.chunks_copied() == 3);
  CHECK(office.desk.registry().memory_taken_bytes() > before);
  office.desk.pass(31 * kSecond, office.ids);
  CHECK(office.desk.registry().memory_taken_bytes() == before);
}

TEST_CASE("a job begins with the snapshot that its ranks name, once it is read") {
  Office like;
  like.start();
  Office office;
  for (const uint32_t rank : {0u, 1u}) {
    office.ids.push_back(office.desk.join(join_restoring(rank, "latest")));
  }
  CHECK(office.desk.take(office.ids[0]).empty());  // it waits
  REQUIRE(office.shelf.loads.size() == 1);
  CHECK(office.shelf.loads[0].which == "latest");
  CHECK(office.shelf.loads[0].part.tensors.size() == 2);
  office.desk.pass(20 * kSecond, office.ids);  // disks are slow
  office.shelf.loads[0].done(restored(7, chunks_of(like.desk)));
  office.desk.deliver();
  for (const ConnectionId id : office.ids) {
    const proto::Session session = office.desk.take(id).at(0).session();
    CHECK(session.restored_snapshot() == 7);
    CHECK(session.restored_steps() == 1'000);
  }
  const auto chunks = chunks_of(office.desk);
  REQUIRE(chunks.size() == 4);
  for (const pipeline::Chunk* chunk : chunks) {
    CHECK(chunk->is_restored);
    CHECK(chunk->rounds_finished == 0);
    CHECK(chunk->weights[chunk->elements - 1] == 0.25f);
    CHECK(chunk->optimizer_state[2 * chunk->elements - 1] == 0.25f);
  }
  // The number of steps continues from the snapshot's.
  for (pipeline::Chunk* chunk : chunks) chunk->rounds_finished = 11;
  office.begin_snapshot();
  office.act();
  office.act();
  office.tick();
  CHECK(office.shelf.written[1].at(0)->copies().at(0).steps == 910);
  CHECK(office.shelf.manifests.empty());
  office.act();
  CHECK(office.shelf.manifests.at(0).steps == 1'010);
}

TEST_CASE("without a snapshot \"latest\" begins with the ranks' weights, and a number is refused") {
  Office office;
  const std::string which = GENERATE("latest", "3");
  for (const uint32_t rank : {0u, 1u}) {
    office.ids.push_back(office.desk.join(join_restoring(rank, which)));
  }
  REQUIRE(office.shelf.loads.size() == 1);
  if (which == "latest") {
    office.shelf.loads[0].done(snapshot::Restored{});
    office.desk.deliver();
    CHECK(office.desk.take(office.ids[0]).at(0).session().restored_snapshot() == 0);
    for (const pipeline::Chunk* chunk : chunks_of(office.desk)) CHECK_FALSE(chunk->is_restored);
    return;
  }
  office.shelf.loads[0].done(Error{ErrorCode::kNotFound, "there is no snapshot 3"});
  office.desk.deliver();
  for (const ConnectionId id : office.ids) {
    CHECK_THAT(office.desk.take_failure(id).message(), Contains("there is no snapshot 3"));
  }
  CHECK(office.desk.job_count() == 0);
}

TEST_CASE("moments that were lost with a box are those of the last snapshot of the same run") {
  Office like;
  like.start();
  Office office;
  for (const uint32_t rank : {0u, 1u}) office.resume(join_optimizing(rank), {4, 4, 5, 0});
  CHECK(office.desk.take(office.ids[0]).empty());
  REQUIRE(office.shelf.loads.size() == 1);
  CHECK(office.shelf.loads[0].which == "latest");
  CHECK(office.shelf.loads[0].choice.ranks == std::vector<uint64_t>{1000, 1001});
  CHECK(office.shelf.loads[0].choice.begun_with == 0);
  const auto told = [&] {
    const proto::Session session = office.desk.take(office.ids[0]).at(0).session();
    CHECK(session.optimizer_restarted());
    CHECK(office.desk.registry().totals().optimizer_restarts == 1);
    return std::pair(session.optimizer_snapshot(), session.optimizer_snapshot_steps());
  };
  SECTION("and are counted on from there") {
    office.shelf.loads[0].done(restored(7, chunks_of(like.desk)));
    office.desk.deliver();
    CHECK(told() == std::pair<uint64_t, uint64_t>(7, 1'000));
    for (const pipeline::Chunk* chunk : chunks_of(office.desk)) {
      CHECK_FALSE(chunk->is_restored);
      const bool is_copied = chunk->copy_rank != pipeline::kNoRank;
      CHECK(is_copied == (chunk->id < 3));
      CHECK(chunk->weights[0] == 0.0f);  // not here yet
      CHECK(chunk->optimizer_state[2 * chunk->elements - 1] == (is_copied ? 0.25f : 0.0f));
      if (!is_copied) continue;
      pipeline::Chunk copied = *chunk;
      ++copied.rounds_finished;
      CHECK(copied.steps() == 900);
    }
  }
  SECTION("there is none") {
    office.shelf.loads[0].done(snapshot::Restored());
    office.desk.deliver();
    CHECK(told().first == 0);
  }
  SECTION("it cannot be read") {
    office.shelf.loads[0].done(Error{ErrorCode::kMismatch, "it is damaged"});
    office.desk.deliver();
    CHECK(told().first == 0);
  }
  SECTION("the disk does not answer") {
    office.desk.pass(29 * kSecond, office.ids);
    CHECK(office.desk.take(office.ids[0]).empty());
    office.desk.pass(2 * kSecond, office.ids);
    CHECK(told().first == 0);
    office.shelf.loads[0].done(restored(7, chunks_of(like.desk)));  // too late
  }
}

TEST_CASE("ranks that were told a snapshot before their box was lost begin with that one again") {
  Office like;
  like.start();
  Office office;
  for (const uint32_t rank : {0u, 1u}) {
    auto message = join_restoring(rank, "latest");
    message.mutable_join()->set_restored_snapshot(rank == 0 ? 7 : 0);  // rank 1 never heard it
    message.mutable_join()->set_restored_steps(rank == 0 ? 1'000 : 0);
    office.resume(message, {0, 0, 1, 1});
  }
  REQUIRE(office.shelf.loads.size() == 1);
  CHECK(office.shelf.loads[0].which == "7");
  office.shelf.loads[0].done(restored(7, chunks_of(like.desk)));
  office.desk.deliver();
  REQUIRE(office.shelf.loads.size() == 2);  // for the optimizer state of the other chunks
  CHECK(office.shelf.loads[1].choice.begun_with == 7);
  office.shelf.loads[1].done(Error{ErrorCode::kSystem, "the disk is broken"});
  office.desk.deliver();
  CHECK(office.desk.take(office.ids[1]).at(0).session().restored_steps() == 1'000);
  for (const pipeline::Chunk* chunk : chunks_of(office.desk)) {
    CHECK(chunk->is_restored == (chunk->id < 2));  // the ranks have weights of the others
  }

  // A cut fails once the rank that owes weights of its chunks is lost.
  const ConnectionId other = office.desk.open();
  proto::WorkerMessage question;
  question.mutable_ask_cut()->set_protocol_version(wire::kControlProtocolVersion);
  question.mutable_ask_cut()->set_job("train");
  question.mutable_ask_cut()->set_snapshot(9);
  question.mutable_ask_cut()->set_round(5);
  office.desk.say(other, question);
  CHECK(office.desk.take(other).at(0).cut_progress().state() == proto::CutProgress::CUTTING);
  for (const ConnectionId id : office.ids) {
    if (!office.desk.is_closed(id))
      office.desk.hang_up(id);  // the rank that owed weights to the others
  }
  office.desk.pass(15 * kSecond, {other});
  const ConnectionId again = office.desk.open();
  office.desk.say(again, question);
  CHECK(office.desk.take(again).at(0).cut_progress().state() == proto::CutProgress::FAILED);
}

TEST_CASE("ranks must name the same snapshot, of a job that can have one") {
  Office office;
  office.desk.join(join_restoring(0, "latest"));
  const ConnectionId other = office.desk.join(join_restoring(1, "2"));
  CHECK_THAT(office.desk.take_failure(other).message(), Contains("restore: '2'"));
  Desk desk;
  auto message = join_message("sums", 0, 2);
  message.mutable_join()->set_restore("latest");
  CHECK_THAT(desk.take_failure(desk.join(message)).message(), Contains("mode optimize"));
  CHECK_THAT(desk.take_failure(desk.join(join_restoring(0, "newest"))).message(),
             Contains("\"latest\" or the number"));
  // A box without a folder says so when all are there.
  const ConnectionId first = desk.join(join_restoring(0, "latest"));
  desk.join(join_restoring(1, "latest"));
  CHECK_THAT(desk.take_failure(first).message(), Contains("[snapshots] directory"));
}

}  // namespace pbox::control::job_registry_snapshot_test
