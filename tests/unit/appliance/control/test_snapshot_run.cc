// A snapshot over several boxes, which answer late, are at different rounds, or disappear.
#include <catch2/catch.hpp>
#include <deque>

#include "appliance/control/snapshot_run.h"

namespace pbox::control::snapshot_run_test {
namespace {

using Catch::Contains;
using proto::CutProgress;

constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kDeadlineNs = 100 * kSecond;

struct Asked {
  std::string box;
  proto::AskCut question;
  SnapshotRun::Answer done;
};

class Files : public snapshot::SnapshotStore {
 public:
  void begin(const std::string&, std::function<void(Result<uint64_t>)> done) override { done(12); }
  void write_part(uint64_t, snapshot::PartHead, snapshot::Cuts,
                  std::function<void(Result<snapshot::PartFile>)>) override {}
  void finish(snapshot::Manifest written, std::function<void(Status)> done) override {
    manifest = std::move(written);
    done(shared ? ok_status() : Status(Error{ErrorCode::kNotFound, "the folder is not shared"}));
  }
  void discard(const std::string& job, uint64_t number) override {
    CHECK(job == "job");
    discarded.push_back(number);
  }
  void load(snapshot::PartHead, snapshot::Choice,
            std::function<void(Result<snapshot::Restored>)>) override {}

  std::vector<uint64_t> discarded;
  bool shared = true;
  std::optional<snapshot::Manifest> manifest;
};

// Three parts; this box owns the second one.
struct Rack {
  Files files;
  std::deque<Asked> asked;
  std::shared_ptr<SnapshotRun> run = std::make_shared<SnapshotRun>(
      files,
      [this](const std::string& box, const proto::AskCut& question, const auto& done) {
        asked.push_back({box, question, done});
      },
      [this](const auto& done) { done(map()); }, [] { return "2026-01-01T00:00:00Z"; },
      [this] { ++ends; }, "job", kDeadlineNs);
  std::vector<std::string> places = {"a", "b", "c"};
  int ends = 0;

  Rack() { run->begin("b", {11, 12}); }

  proto::PartMap map() const {
    proto::PartMap map;
    for (const std::string& box : places) {
      auto& place = *map.add_parts();
      place.set_box(box);
      if (box != "b") place.set_address("10.0.0.1:9541");
    }
    return map;
  }

  Asked take() {
    REQUIRE_FALSE(asked.empty());
    Asked next = std::move(asked.front());
    asked.pop_front();
    return next;
  }
  // Answers for each part how far it is. Returns the round that the run then requests of all parts.
  uint32_t survey(const std::vector<uint32_t>& rounds) {
    for (const uint32_t round : rounds) {
      const Asked question = take();
      CHECK(question.question.snapshot() == 0);
      CutProgress far;
      far.set_newest_round(round);
      question.done(far);
    }
    REQUIRE(asked.size() == rounds.size());
    return asked.front().question.round();
  }
  void answer(CutProgress::State state) {
    CutProgress progress;
    progress.set_state(state);
    progress.set_chunks(4);
    progress.set_chunks_copied(state == CutProgress::CUTTING ? 1 : 4);
    progress.set_file("part");
    progress.set_bytes(10);
    progress.set_steps_before(100);
    take().done(progress);
  }
};

}  // namespace

TEST_CASE("every box is asked for the round of the furthest one, until all have written") {
  Rack rack;
  CHECK(rack.survey({7, 9, 8}) == 9);
  CHECK(rack.asked[0].box == "a");
  CHECK(rack.asked[1].box.empty());  // this box
  rack.answer(CutProgress::CUTTING);
  rack.answer(CutProgress::WRITTEN);
  rack.run->on_tick(1);
  REQUIRE(rack.asked.size() == 2);  // c has not answered yet, b has written
  CHECK(rack.asked[0].box == "c");
  rack.answer(CutProgress::WRITING);
  rack.answer(CutProgress::WRITING);
  CHECK(rack.run->view().state == std::string("writing"));
  rack.run->on_tick(2);
  rack.answer(CutProgress::WRITTEN);
  CHECK_FALSE(rack.files.manifest);
  rack.answer(CutProgress::WRITTEN);
  REQUIRE(rack.files.manifest);
  CHECK(rack.files.manifest->number == 12);
  CHECK(rack.files.manifest->steps == 108);
  CHECK(rack.files.manifest->ranks == std::vector<uint64_t>{11, 12});
  CHECK(rack.files.manifest->parts.at(2).box == "c");
  CHECK(rack.run->is_done());
  CHECK(rack.ends == 1);
  // All boxes are told that the cut is over.
  REQUIRE(rack.asked.size() == 3);
  CHECK(rack.asked[2].question.over());
}

TEST_CASE("each missed cut is followed by one that is further ahead") {
  Rack rack;
  std::vector<uint32_t> margins;
  for (int attempt = 0; attempt < 8; ++attempt) {
    margins.push_back(rack.survey({100, 100, 100}) - 100);
    rack.answer(CutProgress::CUTTING);
    const Asked late = rack.take();
    rack.answer(CutProgress::MISSED);
    if (attempt == 7) break;
    rack.asked.clear();
    rack.run->on_tick(1);
    CutProgress of_before;
    of_before.set_state(CutProgress::FAILED);
    late.done(of_before);  // changes nothing
  }
  CHECK(margins == std::vector<uint32_t>{0, 1, 2, 4, 8, 16, 32, 64});
  CHECK_THAT(rack.run->view().error, Contains("passed every cut"));
}

TEST_CASE("a job that comes to rest before the cut is cut where it rests") {
  Rack rack;
  rack.survey({5, 5, 5});
  for (const auto state : {CutProgress::MISSED, CutProgress::CUTTING}) {
    CutProgress progress;
    progress.set_state(state);
    rack.take().done(progress);
  }
  rack.asked.clear();
  rack.run->on_tick(1);
  CHECK(rack.survey({6, 6, 6}) == 7);
  const auto nobody_is_there = [&] {
    while (!rack.asked.empty()) {
      CutProgress progress;
      progress.set_state(CutProgress::CUTTING);
      progress.set_chunks(4);
      rack.take().done(progress);
    }
  };
  for (uint64_t now_ns = 2; now_ns < kSecond; now_ns += kSecond / 10) {
    nobody_is_there();
    rack.run->on_tick(now_ns);
    CHECK(rack.asked.back().question.round() == 7);
  }
  nobody_is_there();
  rack.run->on_tick(kSecond + 2);
  CHECK(rack.survey({6, 6, 6}) == 6);
  // Once some parts have reached the cut, the run waits for the others.
  for (int part = 0; part < 3; ++part) rack.answer(CutProgress::CUTTING);
  rack.run->on_tick(kSecond + 3);
  for (int part = 0; part < 3; ++part) rack.answer(CutProgress::CUTTING);
  rack.run->on_tick(9 * kSecond);
  CHECK(rack.asked.back().question.round() == 6);
}

TEST_CASE("rounds are compared by serial number, as on the wire") {
  Rack rack;
  CHECK(rack.survey({UINT32_MAX, 1, UINT32_MAX - 1}) == 1);
}

TEST_CASE("a box that does not answer is asked again, and an error ends the run") {
  Rack rack;
  rack.survey({3, 3, 3});
  rack.take().done(Error{ErrorCode::kUnavailable, "no answer"});
  rack.run->on_tick(1);
  CHECK(rack.asked.back().box == "a");
  rack.take().done(Error{ErrorCode::kNotFound, "part 1 is not here any more"});
  CHECK_THAT(rack.run->view().error, Contains("box b: part 1 is not here any more"));
  CHECK_FALSE(rack.files.manifest);
}

TEST_CASE("a part that moves is asked for at the owner that the map then names") {
  Rack rack;
  rack.take();
  rack.take();
  rack.places[2] = std::string("d");
  rack.take().done(Error{ErrorCode::kNotFound, "part 2 is not here any more"});
  CHECK(rack.asked.empty());
  rack.run->on_tick(1);
  REQUIRE(rack.asked.size() == 3);
  CHECK(rack.asked[2].box == "d");
  // Its workers have not reached the new owner yet.
  for (int part = 0; part < 2; ++part) rack.answer(CutProgress::CUTTING);
  rack.take().done(Error{ErrorCode::kUnavailable, "part 2 does not run yet"});
  rack.run->on_tick(kDeadlineNs);
  CHECK_THAT(rack.run->view().error, Contains("box d: part 2 does not run yet"));
}

TEST_CASE("the run fails if the parts are not all in one place") {
  Rack rack;
  rack.files.shared = false;
  rack.survey({3, 3, 3});
  for (int part = 0; part < 3; ++part) rack.answer(CutProgress::WRITTEN);
  CHECK(rack.run->view().state == std::string("failed"));
  CHECK_THAT(rack.run->view().error, Contains("not shared"));
}

TEST_CASE("the files of a run that failed are discarded, those of a complete one are not") {
  Rack failed;
  failed.survey({3, 3, 3});
  failed.answer(CutProgress::WRITTEN);
  failed.answer(CutProgress::FAILED);
  CHECK(failed.run->is_over());
  CHECK(failed.files.discarded == std::vector<uint64_t>{12});
  Rack done;
  done.survey({3, 3, 3});
  for (int part = 0; part < 3; ++part) done.answer(CutProgress::WRITTEN);
  CHECK(done.run->is_done());
  CHECK(done.files.discarded.empty());
}

TEST_CASE("the run fails at its deadline") {
  Rack rack;
  rack.survey({3, 3, 3});
  rack.answer(CutProgress::WRITTEN);
  rack.answer(CutProgress::CUTTING);
  rack.run->on_tick(kDeadlineNs - 1);
  CHECK_FALSE(rack.run->is_over());
  rack.run->on_tick(kDeadlineNs);
  CHECK_THAT(rack.run->view().error, Contains("box b has 1 of 4 chunks"));
  CHECK(rack.ends == 1);
  rack.answer(CutProgress::WRITTEN);  // too late
  CHECK(rack.run->is_over());
}

}  // namespace pbox::control::snapshot_run_test
